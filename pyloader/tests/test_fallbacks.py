"""Every way in which the cache can fail: the call succeeds with one warning, and with OVERMIND_STRICT=1 it raises."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import logging
import os
import pathlib
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overmind import cache, deadline, locks, store
from overmind.api import explain, load, stats
from overmind.errors import OvermindError
from overmind.manifest import decode
from overmind.manifest import encode as encoding
from overmind.manifest.encode import encode

LOG = logging.getLogger('loader-calls')


def make(path: str) -> dict[str, Any]:
    LOG.info('make')
    return {'weight': torch.load(path)['weight'], 'text': 'x' * 300_000}


class Unsettled:
    """Can be written, and not be read back."""

    def __getstate__(self) -> dict[str, int]:
        return {'a': 1}

    def __setstate__(self, state: dict[str, int]) -> None:
        raise ValueError('only here')


class Prickly:
    """Whoever looks at it gets hurt."""

    @property
    def model(self) -> Any:
        raise RuntimeError('do not look')


def unsettled(path: str) -> Any:
    return [Unsettled(), torch.load(path)['weight']]


def prickly(path: str) -> Any:
    return Prickly()


def fails(path: str, kind: type[BaseException]) -> Any:
    LOG.info('fails')
    raise kind('from the user')


def outer(path: str) -> dict[str, Any]:
    return {'inner': load(make, path)['weight'], 'own': torch.ones(2)}


def slow(path: str) -> Any:
    LOG.info('slow')
    time.sleep(0.3)
    return torch.load(path)['weight']


def leaves_a_child(path: str) -> Any:
    """The child lives on for as long as it is let."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    return [writing, torch.load(path)['weight']]


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> str:
    path = tmp_path / 'x.pt'
    torch.save({'weight': torch.arange(6.0)}, path)
    return str(path)


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    yield
    gc.collect()  # what a strict call raised may be part of a cycle of pytest's
    assert not locks.held
    assert not held_open('/root/locks/')
    assert not held_open('/root/staging/')


def held_open(part: str) -> list[str]:
    """The open files of this process whose paths contain that."""
    found = []
    for fd in os.listdir('/proc/self/fd'):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f'/proc/self/fd/{fd}'))
    return [path for path in found if part in path]


@pytest.fixture
def calls(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    caplog.set_level(logging.INFO, 'loader-calls')
    return lambda: sum(r.name == 'loader-calls' for r in caplog.records)


Falls = Callable[..., Any]


@pytest.fixture
def falls_back(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Falls:
    """A check for one call: raises when strict, then succeeds twice with one warning, and says why in the reasons."""

    def check(words: str, fn: Callable[..., Any], *args: Any, outcome: str = 'bypass') -> Any:
        monkeypatch.setenv('OVERMIND_STRICT', '1')
        with pytest.raises(OvermindError, match=words):
            load(fn, *args)
        assert stats().loads[-1].outcome == 'bypass'
        monkeypatch.delenv('OVERMIND_STRICT')
        cache._given_up.clear()
        caplog.clear()
        result = load(fn, *args)
        assert stats().loads[-1].outcome == outcome
        assert words in stats().loads[-1].reason
        if outcome == 'bypass':
            load(fn, *args)
        said = [r.getMessage() for r in caplog.records if r.name == 'overmind' and r.levelno >= logging.WARNING]
        assert len(said) == 1, said
        assert words in said[0]
        assert fn.__name__ in said[0]
        monkeypatch.setenv('OVERMIND_STRICT', '1')
        return result

    return check


def assert_made(value: Any) -> None:
    assert torch.equal(value['weight'], torch.arange(6.0))
    assert len(value['text']) == 300_000


def assert_clean(root: pathlib.Path, entries: int) -> None:
    assert not list((root / 'staging').iterdir())
    assert len(list((root / 'pipelines').iterdir())) == entries


# ---- filling


def test_no_staging_folder(root: pathlib.Path, checkpoint: str, falls_back: Falls) -> None:
    explain(make, checkpoint)
    (root / 'staging').rmdir()
    (root / 'staging').write_text('in the way')
    assert_made(falls_back('it is not a folder', make, checkpoint))
    assert not list((root / 'pipelines').iterdir())


def test_no_room(root: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'ftruncate', full)
    assert_made(falls_back('no room in the cache', make, checkpoint))
    assert_clean(root, 0)


def test_a_full_file_system(root: pathlib.Path, checkpoint: str, falls_back: Falls) -> None:
    """A plain directory: writing to the mapping of a hole would be a SIGBUS."""
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=64k', 'none', str(root)], capture_output=True).returncode:
        pytest.skip('this user cannot mount a small file system')
    try:
        assert_made(falls_back('no room in the cache', make, checkpoint))
        assert_clean(root, 0)
    finally:
        subprocess.run(['umount', '-l', str(root)], check=True)


def test_a_write_that_stops_half_way(root: pathlib.Path, checkpoint: str, falls_back: Falls) -> None:
    """The arena has 4 KiB and fits; the structure has 300 and does not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        assert_made(falls_back('File too large', make, checkpoint))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_clean(root, 0)


def refuse_commit(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def refuse(source: str, target: str, **folders: Any) -> None:
        if '/pipelines/' in target:
            raise OSError(code, os.strerror(code), source, None, target)
        rename(source, target, **folders)

    monkeypatch.setattr(os, 'rename', refuse)


@pytest.mark.parametrize('code', [errno.EPERM, errno.ETXTBSY, errno.EBUSY, errno.EINVAL, errno.ENOTCONN])
def test_a_refused_commit(
    code: int, root: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_commit(code, monkeypatch)
    words = {
        errno.EPERM: 'belongs to another user',
        errno.ETXTBSY: 'still open for writing',
        errno.EBUSY: 'still mapped for writing',
        errno.EINVAL: 'the log of overmind-fs says why',
        errno.ENOTCONN: 'the daemon is gone',
    }
    assert_made(falls_back(words[code], make, checkpoint))
    assert_clean(root, 0)


def test_a_refused_commit_keeps_no_lease(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('OVERMIND_STRICT')
    refuse_commit(errno.EBUSY, monkeypatch)
    gc.disable()
    try:
        assert_made(load(make, checkpoint))
        assert not held_open('/root/staging/')
    finally:
        gc.enable()


def test_an_entry_that_cannot_be_rebuilt(root: pathlib.Path, checkpoint: str, falls_back: Falls) -> None:
    result = falls_back('only here', unsettled, checkpoint)
    assert torch.equal(result[1], torch.arange(6.0))
    assert_clean(root, 0)


def test_an_object_that_must_not_be_looked_at(root: pathlib.Path, checkpoint: str, falls_back: Falls) -> None:
    """No error of the package itself reaches the program, whatever it is."""
    assert isinstance(falls_back('unexpected RuntimeError: do not look', prickly, checkpoint), Prickly)
    assert_clean(root, 0)


def test_no_thread(root: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, 'start', start)
    assert_made(falls_back("can't start new thread", make, checkpoint))


# ---- reading


@pytest.fixture
def entry(root: pathlib.Path, checkpoint: str) -> pathlib.Path:
    load(make, checkpoint)
    (found,) = (root / 'pipelines').iterdir()
    return found


def test_a_manifest_of_a_future_format(
    entry: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = entry / 'manifest'
    manifest = decode(path.read_bytes())
    monkeypatch.setattr(encoding, 'FORMAT', 2)
    path.chmod(0o644)
    path.write_bytes(encode(manifest))
    monkeypatch.setattr(encoding, 'FORMAT', 1)
    assert_made(falls_back('format 2', make, checkpoint, outcome='miss'))


def test_a_short_arena(entry: pathlib.Path, checkpoint: str, falls_back: Falls) -> None:
    (arena,) = (entry / 'tensors').iterdir()
    arena.chmod(0o644)
    os.truncate(arena, arena.stat().st_size - 1)
    assert_made(falls_back('the manifest says', make, checkpoint, outcome='miss'))


def of_a_library(path: str) -> Any:
    try:
        import passing_library  # type: ignore[import-not-found]
    except ImportError:
        return 'plain'
    return passing_library.Thing()


def test_a_module_that_is_gone(
    root: pathlib.Path, tmp_path: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / 'site-packages' / 'passing_library.py'
    library.parent.mkdir()
    library.write_text('class Thing:\n    pass\n')
    monkeypatch.setattr(sys, 'path', [str(library.parent), *sys.path])
    assert type(load(of_a_library, checkpoint)).__name__ == 'Thing'
    del sys.modules['passing_library']
    sys.path.pop(0)
    result = falls_back("No module named 'passing_library'", of_a_library, checkpoint, outcome='miss')
    assert result == 'plain'


@pytest.mark.skipif(os.geteuid() != 0, reason='only root gives files away')
def test_another_users_entry(
    entry: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of one's own it is replaced, unless its owner is trusted."""
    for name in ('manifest', 'structure.pkl'):
        os.chown(entry / name, 4242, -1)
    monkeypatch.setenv('OVERMIND_TRUST', '4242')
    assert_made(load(make, checkpoint))
    assert stats().loads[-1].outcome == 'hit'
    monkeypatch.delenv('OVERMIND_TRUST')
    assert_made(falls_back('belongs to uid 4242', make, checkpoint, outcome='miss'))
    assert (entry / 'manifest').stat().st_uid == 0
    assert_made(load(make, checkpoint))
    assert stats().loads[-1].outcome == 'hit'


SCRIPT = """
import logging, os, resource, sys
sys.path[:0] = [sys.argv[1]]
import fallback_loaders
from overmind.api import load, stats
if sys.argv[3] == 'limited':
    import overmind.cache, overmind.fill, overmind.restore, overmind.key.natives, overmind_cext, torch.utils.dlpack
    load(fallback_loaders.zeros, 'other')
    with open('/proc/self/statm') as f:
        used = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
os.environ['ZEROS'] = sys.argv[4]
value = load(fallback_loaders.zeros, sys.argv[2])
print(value.numel(), stats().loads[-1].outcome, stats().loads[-1].reason)
"""


def test_no_address_space(root: pathlib.Path, checkpoint: str) -> None:
    def run(mode: str, size: int, **env: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, '-c', SCRIPT, os.path.dirname(__file__), checkpoint, mode, str(size)]
        return subprocess.run(line, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)

    assert '268435456 miss' in run('free', 256 << 20).stdout
    strict = run('limited', 10)
    assert strict.returncode == 1
    assert 'StoreError' in strict.stderr
    relaxed = run('limited', 10, OVERMIND_STRICT='0')
    assert relaxed.stdout.startswith('10 bypass zeros-'), relaxed.stdout + relaxed.stderr
    assert 'cannot be mapped: mmap (address space) of 268' in relaxed.stdout
    assert relaxed.stderr.count('warning') == 1
    assert '268435456 hit' in run('free', 10).stdout


# ---- waiting


@contextlib.contextmanager
def held(root: pathlib.Path, id: str) -> Iterator[None]:
    """Another process holds the lock of an id."""
    path = root / 'locks' / id
    script = 'import fcntl,sys;f=open(sys.argv[1],"w");fcntl.flock(f,2);print("held",flush=True);sys.stdin.read()'
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
    with subprocess.Popen([sys.executable, '-c', script, str(path)], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b'held\n'
        yield
        process.stdin.close()


def test_a_wait_has_an_end(
    root: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('OVERMIND_WAIT', '1')
    with held(root, explain(make, checkpoint).id):
        start = time.monotonic()
        assert_made(falls_back('for 1 s', make, checkpoint))
        assert time.monotonic() - start > 2.9
    load(make, checkpoint)
    assert stats().loads[-1].outcome == 'miss'


def test_a_wait_can_be_interrupted(root: pathlib.Path, checkpoint: str, calls: Callable[[], int]) -> None:
    with held(root, explain(make, checkpoint).id):
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            load(make, checkpoint)
        timer.join()
    assert calls() == 0
    load(make, checkpoint)
    assert stats().loads[-1].outcome == 'miss'


def test_a_wait_ends_soon_after_the_lock_is_free(
    root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 100:
            holder.__exit__(None, None, None)

    holder = held(root, explain(make, checkpoint).id)
    holder.__enter__()
    monkeypatch.setattr(store, 'time', SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    assert_made(load(make, checkpoint))
    assert len(pauses) == 100
    assert max(pauses) <= 0.2


@contextlib.contextmanager
def fifo(path: pathlib.Path) -> Iterator[None]:
    """Opening it hangs; at the end whoever hangs is let go."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for _ in range(50):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                time.sleep(0.01)


@pytest.mark.parametrize('name', ['manifest', 'structure.pkl', 'tensors/model.safetensors'])
def test_a_root_that_hangs(
    name: str, entry: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('OVERMIND_DEADLINE', '0.3')
    if name.startswith('tensors'):
        name = os.path.join('tensors', next((entry / 'tensors').iterdir()).name)
    with fifo(entry / name):
        assert_made(falls_back('did not answer', make, checkpoint))


def test_what_comes_late_is_closed() -> None:
    closed: list[int] = []
    release = threading.Event()

    def work() -> int:
        release.wait()
        return 7

    with pytest.raises(OvermindError, match='did not answer'):
        deadline.guarded('the root', 0.05, work, closed.append)
    release.set()
    until = time.monotonic() + 5
    while not closed and time.monotonic() < until:
        time.sleep(0.01)
    assert closed == [7]


def test_a_late_entry_gives_its_lease_back(
    entry: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('OVERMIND_DEADLINE', '0.2')
    monkeypatch.delenv('OVERMIND_STRICT')
    release, real = threading.Event(), store.read_file

    def hangs(path: str, at: int | None = None) -> tuple[bytes, int]:
        if path.endswith('structure.pkl'):
            release.wait(10)
        return real(path, at)

    monkeypatch.setattr(store, 'read_file', hangs)
    assert_made(load(make, checkpoint))
    (arena,) = (entry / 'tensors').iterdir()
    assert len(held_open(str(arena))) == 1
    release.set()
    until = time.monotonic() + 5
    while held_open(str(arena)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not held_open(str(arena))


# ---- processes and threads


def test_a_child_does_not_keep_the_lock(root: pathlib.Path, checkpoint: str) -> None:
    writing, weight = load(leaves_a_child, checkpoint)
    assert torch.equal(weight, torch.arange(6.0))
    with open(root / 'locks' / stats().loads[-1].id) as f:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(writing, b'x')
    os.close(writing)
    os.wait()


def test_the_lock_is_not_kept_by_a_child_that_python_did_not_fork(root: pathlib.Path) -> None:
    lock = store.Store(str(root), 3).lock('a', 0, lambda: None)
    assert lock is not None
    os.set_inheritable(lock.fd, True)
    with subprocess.Popen(['sleep', '60'], close_fds=False) as child:
        lock.release()
        again = store.Store(str(root), 3).lock('a', 0, lambda: None)
        assert again is not None
        again.release()
        child.kill()


def test_a_child_releases_nothing(root: pathlib.Path) -> None:
    lock = store.Store(str(root), 3).lock('a', 0, lambda: None)
    assert lock is not None
    child = os.fork()
    if child == 0:
        other = os.open('/dev/null', os.O_RDONLY)  # gets the number of the lock's file
        lock.release()
        os._exit(0 if os.fstat(other) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.Store(str(root), 3).lock('a', 0, lambda: None) is None
    lock.release()


def test_threads_load_the_same_thing(root: pathlib.Path, checkpoint: str, calls: Callable[[], int]) -> None:
    results: list[Any] = []
    errors: list[BaseException] = []
    ready = threading.Barrier(8)

    def run() -> None:
        try:
            ready.wait()
            results.append(load(slow, checkpoint))
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert calls() == 1
    s = stats()
    assert (s.hits, s.misses, s.bypasses) == (7, 1, 0)
    results[0].fill_(9)
    assert all(torch.equal(r, torch.arange(6.0)) for r in results[1:])
    assert_clean(root, 1)


# ---- what the loader does


def test_a_loader_inside_a_loader(root: pathlib.Path, checkpoint: str, calls: Callable[[], int]) -> None:
    for _ in range(2):
        value = load(outer, checkpoint)
        assert torch.equal(value['inner'], torch.arange(6.0))
    s = stats()
    assert (s.hits, s.misses, s.bypasses) == (1, 1, 0)
    assert calls() == 1
    torch.save({'weight': torch.arange(3.0)}, checkpoint)
    assert torch.equal(load(outer, checkpoint)['inner'], torch.arange(3.0))


@pytest.mark.parametrize('kind', [KeyError, KeyboardInterrupt, SystemExit, MemoryError, OvermindError])
@pytest.mark.parametrize('strict', ['0', '1'])
def test_the_users_exceptions_come_through(
    kind: type[BaseException],
    strict: str,
    root: pathlib.Path,
    checkpoint: str,
    calls: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv('OVERMIND_STRICT', strict)
    with pytest.raises(kind, match='from the user') as caught:
        load(fails, checkpoint, kind)
    assert caught.value.__context__ is None
    assert calls() == 1
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert stats().loads == []
    assert_clean(root, 0)
    assert pickle.dumps(stats())
