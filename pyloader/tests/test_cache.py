"""The whole way through a plain directory, without a daemon: the same loader and the same file operations."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from overmind import cache, chance
from overmind.api import load, stats
from overmind.errors import Bypass, StoreError

# A list of names would be a constant that the functions use, and with that a part of their keys.
LOG = logging.getLogger('loader-calls')


def make(path: str, scale: float = 1.0) -> nn.Module:
    LOG.info(path)
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    m.load_state_dict(torch.load(path))
    with torch.no_grad():
        m[0].weight.mul_(scale)
    return m


def wrap(inner: Any) -> dict[str, Any]:
    return {'inner': inner, 'layer': inner[0], 'own': torch.arange(4)}


def change(inner: Any) -> dict[str, Any]:
    inner.note = 'changed by the loader'
    return {'inner': inner}


def open_file(path: str) -> Any:
    LOG.info('open_file')
    return [open(path, 'rb')]


def dies(path: str) -> Any:
    raise KeyError('from the user')


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> str:
    path = tmp_path / 'x.pt'
    torch.manual_seed(0)
    torch.save(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).state_dict(), path)
    return str(path)


def counts() -> tuple[int, int, int]:
    s = stats()
    return s.hits, s.misses, s.bypasses


def test_miss_then_hit(root: pathlib.Path, checkpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    plain = make(checkpoint)
    caplog.set_level(logging.INFO, 'loader-calls')
    first, second = load(make, checkpoint), load(make, checkpoint)
    assert counts() == (1, 1, 0)
    assert [r.getMessage() for r in caplog.records if r.name == 'loader-calls'] == [checkpoint]
    for m in (first, second):
        assert torch.equal(m[0].weight, plain[0].weight)
        assert m[0].weight.requires_grad
    (entry,) = (root / 'pipelines').iterdir()
    assert entry.name.startswith('make-x.pt-')
    assert not list((root / 'staging').iterdir())
    assert sorted(p.name for p in entry.iterdir()) == ['manifest', 'structure.pkl', 'tensors', 'written.json']


def test_writes_are_private(root: pathlib.Path, checkpoint: str) -> None:
    first = load(make, checkpoint)
    with torch.no_grad():
        first[0].weight.fill_(9)
    second = load(make, checkpoint)
    assert not torch.equal(second[0].weight, first[0].weight)
    with torch.no_grad():
        second[0].weight.fill_(7)
    assert torch.equal(load(make, checkpoint)[0].weight, make(checkpoint)[0].weight)


def test_the_same_call_written_differently_hits(
    root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(make, checkpoint, scale=2.0)
    load(make, path=checkpoint, scale=2.0)
    load(make, scale=2.0, path=pathlib.Path(checkpoint))
    monkeypatch.chdir(os.path.dirname(checkpoint))
    load(make, 'x.pt', 2.0)
    assert counts() == (3, 1, 0)
    load(make, checkpoint, scale=3.0)
    assert counts() == (3, 2, 0)


def test_a_rewritten_file_misses_and_replaces(root: pathlib.Path, checkpoint: str) -> None:
    load(make, checkpoint)
    before = os.stat(checkpoint)
    data = bytearray(pathlib.Path(checkpoint).read_bytes())
    other = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    torch.save(other.state_dict(), checkpoint)
    assert os.stat(checkpoint).st_size == len(data)
    os.utime(checkpoint, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert torch.equal(load(make, checkpoint)[0].weight, other[0].weight)
    assert counts() == (0, 2, 0)
    assert len(list((root / 'pipelines').iterdir())) == 1
    load(make, checkpoint)
    assert counts() == (1, 2, 0)


def test_references_keep_identity_and_changes(root: pathlib.Path, checkpoint: str) -> None:
    for _ in range(2):
        inner = load(make, checkpoint)
        inner.note = object()
        with torch.no_grad():
            inner[0].weight.add_(1)
        out = load(wrap, inner)
        assert out['inner'] is inner
        assert out['layer'] is inner[0]
        assert torch.equal(out['own'], torch.arange(4))
    assert counts() == (2, 2, 0)


def test_a_loader_that_changes_its_argument_is_not_cached(
    root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv('OVERMIND_STRICT')
    inner = load(make, checkpoint)
    assert load(change, inner)['inner'] is inner
    assert counts() == (0, 1, 1)
    assert 'changed an object' in stats().reasons[-1]


@pytest.mark.parametrize('patched', [True, False])
def test_an_object_that_never_came_from_the_cache(
    root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch, patched: bool
) -> None:
    monkeypatch.delenv('OVERMIND_STRICT')
    inner = make(checkpoint)
    assert cache.cached_call(wrap, (inner,), {}, patched)['inner'] is inner
    assert counts() == (0, 0, 1)


def test_what_cannot_be_kept_is_returned_and_not_tried_again(
    root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv('OVERMIND_STRICT')
    with caplog.at_level(logging.WARNING, 'overmind'):
        first = load(open_file, checkpoint)
        second = load(open_file, checkpoint)
    assert first[0].read(2) == b'PK'
    assert second[0].read(2) == b'PK'
    assert counts() == (0, 0, 2)
    assert len([r for r in caplog.records if 'open in this process' in r.getMessage()]) == 1
    assert not list((root / 'staging').iterdir())
    assert not list((root / 'pipelines').iterdir())


def test_strict_raises_what_would_be_a_warning(root: pathlib.Path, checkpoint: str) -> None:
    with pytest.raises(Bypass, match='open in this process'):
        load(open_file, checkpoint)


def test_the_loaders_own_exception_comes_through(root: pathlib.Path, checkpoint: str) -> None:
    with pytest.raises(KeyError, match='from the user'):
        load(dies, checkpoint)
    assert not list((root / 'staging').iterdir())
    assert load(make, checkpoint) is not None


@pytest.mark.parametrize('where', ['', '/nowhere/at/all', __file__])
def test_no_cache_there(where: str, root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OVERMIND_ROOT', where)
    with pytest.raises(StoreError):
        load(make, checkpoint)
    monkeypatch.delenv('OVERMIND_STRICT')
    assert torch.equal(load(make, checkpoint)[0].weight, make(checkpoint)[0].weight)
    assert counts()[:2] == (0, 0)


def test_a_folder_with_other_things_is_not_used(
    root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / 'thesis.tex').write_text('x')
    with pytest.raises(StoreError, match='neither a mount'):
        load(make, checkpoint)
    assert [p.name for p in root.iterdir()] == ['thesis.tex']


def damage_manifest(entry: pathlib.Path) -> None:
    path = entry / 'manifest'
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:100])


def damage_structure(entry: pathlib.Path) -> None:
    path = entry / 'structure.pkl'
    path.chmod(0o644)
    path.write_bytes(b'\x80\x05' + b'x' * (path.stat().st_size - 2))


def damage_arena(entry: pathlib.Path) -> None:
    (path,) = (entry / 'tensors').iterdir()
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size - 1)


def remove_arena(entry: pathlib.Path) -> None:
    (path,) = (entry / 'tensors').iterdir()
    path.unlink()


@pytest.mark.parametrize('damage', [damage_manifest, damage_structure, damage_arena, remove_arena])
def test_a_damaged_entry_is_refused_and_replaced(
    damage: Callable[[pathlib.Path], None],
    root: pathlib.Path,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    load(make, checkpoint)
    (entry,) = (root / 'pipelines').iterdir()
    damage(entry)
    with pytest.raises(StoreError):
        load(make, checkpoint)
    monkeypatch.delenv('OVERMIND_STRICT')
    with caplog.at_level(logging.WARNING, 'overmind'):
        again = load(make, checkpoint)
    assert torch.equal(again[0].weight, make(checkpoint)[0].weight)
    assert 'replaced' in caplog.text
    assert load(make, checkpoint) is not None
    assert counts() == (1, 2, 1)


def test_disabled_means_not_there(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OVERMIND_DISABLE', '1')
    load(make, checkpoint)
    assert counts() == (0, 0, 0)
    assert not list(root.iterdir())


def new_head(path: str) -> Any:
    m = make(path)
    return [m, nn.Linear(2, 2)]


def moved_only(path: str) -> Any:
    torch.randn(3)
    return make(path)


def test_a_patched_load_that_makes_weights_up_is_not_cached(
    root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv('OVERMIND_STRICT')
    torch.manual_seed(1)
    nn.Linear(3, 3), nn.Linear(2, 2)
    expected = torch.get_rng_state()
    torch.manual_seed(1)
    cache.cached_call(new_head, (checkpoint,), {}, patched=True)
    assert counts() == (0, 0, 1)
    assert 'chance' in stats().reasons[-1]
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_patched_load_that_only_moves_the_state_is_cached(root: pathlib.Path, checkpoint: str) -> None:
    cache.cached_call(moved_only, (checkpoint,), {}, patched=True)
    cache.cached_call(moved_only, (checkpoint,), {}, patched=True)
    assert counts() == (1, 1, 0)


def test_explicit_load_is_the_callers_word(root: pathlib.Path, checkpoint: str) -> None:
    load(new_head, checkpoint)
    load(new_head, checkpoint)
    assert counts() == (1, 1, 0)


def test_states_are_compared_and_put_back() -> None:
    before = chance.states()
    chance.reseed()
    torch.randn(2)
    assert chance.moved(before, chance.states())
    chance.restore(before)
    assert not chance.moved(before, chance.states())


def test_a_waiter_gets_what_the_first_filled(root: pathlib.Path, checkpoint: str) -> None:
    script = textwrap.dedent(f"""
        import sys, time
        sys.path[:0] = [{os.path.dirname(__file__)!r}]
        import slow_loader
        from overmind.api import load, stats
        load(slow_loader.make, {checkpoint!r})
        s = stats()
        print(s.hits, s.misses, s.bypasses)
    """)
    processes = [subprocess.Popen([sys.executable, '-c', script], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    out = sorted(p.communicate(timeout=120)[0].strip() for p in processes)
    assert out == ['0 1 0', '1 0 0', '1 0 0', '1 0 0']


def test_a_killed_filler_frees_the_lock_and_leaves_no_staging(root: pathlib.Path, checkpoint: str) -> None:
    script = textwrap.dedent(f"""
        import os, signal, sys
        sys.path[:0] = [{os.path.dirname(__file__)!r}]
        import slow_loader
        from overmind import staging
        staging.Staging.commit = lambda self: os.kill(os.getpid(), signal.SIGKILL)
        from overmind.api import load
        load(slow_loader.make, {checkpoint!r})
    """)
    assert subprocess.run([sys.executable, '-c', script], timeout=120).returncode == -9
    assert list((root / 'staging').iterdir())
    sys.path.insert(0, os.path.dirname(__file__))
    import slow_loader

    load(slow_loader.make, checkpoint)
    assert counts() == (0, 1, 0)
    assert not list((root / 'staging').iterdir())


def test_an_entry_that_is_replaced_while_it_is_opened_is_never_mixed(
    root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the manifest and the arenas of the old entry another process publishes a new one of the same sizes."""
    load(make, checkpoint)
    (entry,) = (root / 'pipelines').iterdir()
    other = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    replacement = root / 'staging' / 'other'
    shutil.copytree(entry, replacement)
    (arena,) = (replacement / 'tensors').iterdir()
    arena.chmod(0o644)
    old, new = (m[0].weight.detach().numpy().tobytes() for m in (make(checkpoint), other))
    assert arena.read_bytes().count(old) == 1
    arena.write_bytes(arena.read_bytes().replace(old, new))
    (old_arena,) = (entry / 'tensors').iterdir()
    old_arena.unlink()
    os.mkfifo(old_arena)  # to open it is to wait for somebody who writes
    running, loaded = len(os.listdir('/proc/self/task')), threading.Event()

    def swap() -> None:
        while len(os.listdir('/proc/self/task')) < running + 2:
            time.sleep(0.01)
        time.sleep(0.3)  # the manifest is read, and the arena being opened
        old = entry.rename(root / 'staging' / 'old')
        replacement.rename(entry)
        while not loaded.is_set():
            try:
                os.close(os.open(old / 'tensors' / old_arena.name, os.O_WRONLY | os.O_NONBLOCK))
                break
            except OSError:  # not there yet
                time.sleep(0.01)

    swapping = threading.Thread(target=swap)
    swapping.start()
    found = load(make, checkpoint)
    loaded.set()
    swapping.join()
    assert torch.equal(found[0].weight, other[0].weight)
    assert counts() == (1, 1, 0)


def inner(path: str, device: str) -> Any:
    return torch.load(path, map_location=device)


def outer(path: str, device: str) -> Any:
    return {'inner': load(inner, path, device)}


def test_words_among_the_arguments_of_nested_loads_are_no_files(
    root: pathlib.Path, checkpoint: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that is started in another folder finds what the first one has filled."""
    for name in ('one', 'two'):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        load(outer, checkpoint, 'cpu')
    assert counts() == (1, 1, 0)
