"""Starting a daemon, with a program that stands in for it and, where there is one, the real one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from overmind import autostart
from overmind.errors import StoreError
from overmind.settings import Settings

WANTED = Settings(autostart=True, deadline_seconds=1.0)
REAL = shutil.which('overmind-fs', path=str(Path(__file__).parents[3] / 'bin')) or shutil.which('overmind-fs')


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An empty runtime folder, and a PATH on which only the test's overmind-fs is."""
    runtime, programs = tmp_path / 'runtime', tmp_path / 'programs'
    runtime.mkdir(mode=0o700)
    programs.mkdir()
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(runtime))
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    monkeypatch.setenv('PATH', str(programs))
    monkeypatch.setattr(tempfile, 'tempdir', None)
    monkeypatch.setattr(autostart, '_started', None)
    return SimpleNamespace(runtime=runtime, programs=programs, folder=str(runtime / 'overmind'), tmp=tmp_path)


HEAD = """#!{python}
import os, sys, time
folder = sys.argv[3]
with open({starts!r}, 'a') as f: f.write(' '.join(sys.argv[1:]) + chr(10))
"""


@pytest.fixture
def daemon(place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install a program as overmind-fs. A folder counts as mounted by us if it has a status.json."""

    def owner(folder: str) -> int | None:
        return os.geteuid() if os.path.exists(os.path.join(folder, 'mounted')) else None

    def install(script: str) -> None:
        program = place.programs / 'overmind-fs'
        program.write_text(HEAD.format(python=sys.executable, starts=str(place.tmp / 'starts')) + script)
        program.chmod(0o755)

    monkeypatch.setattr(autostart, 'mount_owner', owner)
    return install


UP = 'for name in ("status.json", "mounted"): open(os.path.join(folder, name), "w").write("{}")\n'


def starts(place: SimpleNamespace) -> list[str]:
    path = place.tmp / 'starts'
    return path.read_text().splitlines() if path.exists() else []


def test_not_wanted(place: SimpleNamespace) -> None:
    assert autostart.ensure_root(Settings()) is None
    assert autostart.ensure_root(Settings(root='/mnt/x', autostart=True)) == '/mnt/x'
    assert list(place.runtime.iterdir()) == []


def test_started_once(place: SimpleNamespace, daemon: Callable[[str], None]) -> None:
    daemon('time.sleep(0.1)\n' + UP)
    assert autostart.ensure_root(WANTED) == place.folder
    assert autostart.ensure_root(WANTED) == place.folder
    autostart._started = None
    assert autostart.ensure_root(WANTED) == place.folder
    assert starts(place) == ['mount --background ' + place.folder]


def test_answers_later_and_keeps_its_output_open(place: SimpleNamespace, daemon: Callable[[str], None]) -> None:
    daemon('if os.fork() == 0:\n    time.sleep(0.3)\n    ' + UP.replace('\n', '\n    ') + 'time.sleep(20)\n')
    started = time.monotonic()
    assert autostart.ensure_root(WANTED) == place.folder
    assert time.monotonic() - started < 15


def _many(results: multiprocessing.Queue[str], barrier: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    try:
        results.put(str(autostart.ensure_root(WANTED)))
    except StoreError as e:
        results.put(f'{e}')


def test_twenty_processes(place: SimpleNamespace, daemon: Callable[[str], None]) -> None:
    daemon('time.sleep(0.3)\n' + UP)
    context = multiprocessing.get_context('fork')
    results, barrier = context.Queue(), context.Barrier(20)
    processes = [context.Process(target=_many, args=(results, barrier)) for _ in range(20)]
    for process in processes:
        process.start()
    got = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join()
    assert got == [place.folder] * 20
    assert len(starts(place)) == 1


def test_not_on_path(place: SimpleNamespace) -> None:
    with pytest.raises(StoreError, match=r'overmind-fs is not on PATH.*make install'):
        autostart.ensure_root(WANTED)


@pytest.mark.parametrize(
    ('script', 'message'),
    [
        ('sys.exit("no /dev/fuse here")\n', 'failed with 1: no /dev/fuse here'),
        ('pass\n', 'does not answer'),
        ('time.sleep(60)\n', 'took more than'),
        (UP + 'os.remove(folder + "/status.json"); os.mkfifo(folder + "/status.json")\n', 'does not answer'),
    ],
    ids=['fails', 'does nothing', 'hangs', 'mount hangs'],
)
def test_failures(
    place: SimpleNamespace, daemon: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    monkeypatch.setattr(autostart, 'LIMIT_SECONDS', 1.0)
    daemon(script)
    started = time.monotonic()
    with pytest.raises(StoreError, match=message):
        autostart.ensure_root(Settings(autostart=True, deadline_seconds=0.2))
    assert time.monotonic() - started < 30
    assert autostart._started is None
    with contextlib.suppress(OSError):
        os.close(os.open(place.folder + '/status.json', os.O_WRONLY | os.O_NONBLOCK))  # lets the reader thread go


def test_program_that_cannot_be_run(place: SimpleNamespace) -> None:
    program = place.programs / 'overmind-fs'
    program.write_text('#!/nowhere/python\n')
    program.chmod(0o755)
    with pytest.raises(StoreError, match=r'overmind-fs cannot be run: No such file'):
        autostart.ensure_root(WANTED)


def test_folder_that_cannot_be_made(
    place: SimpleNamespace, daemon: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon(UP)

    def mkdir(path: str, mode: int = 0o777) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, 'mkdir', mkdir)
    with pytest.raises(StoreError, match=r'cannot be made: Read-only file system; set OVERMIND_ROOT, or TMPDIR'):
        autostart.ensure_root(WANTED)
    assert starts(place) == []


def test_another_starter_hangs(
    place: SimpleNamespace, daemon: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autostart, 'LIMIT_SECONDS', 0.3)
    daemon(UP)
    with open(place.folder + '.lock', 'w') as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match='another process'):
            autostart.ensure_root(WANTED)
    assert starts(place) == []


def test_lock_is_not_followed(place: SimpleNamespace, daemon: Callable[[str], None]) -> None:
    daemon(UP)
    os.symlink(place.tmp / 'victim', place.folder + '.lock')
    with pytest.raises(StoreError, match='lock'):
        autostart.ensure_root(WANTED)
    assert not (place.tmp / 'victim').exists()


def test_mount_of_somebody_else(place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autostart, 'mount_owner', lambda folder: os.geteuid() + 1)
    with pytest.raises(StoreError, match='belongs to uid'):
        autostart.ensure_root(WANTED)


def test_folder_in_the_runtime_folder(place: SimpleNamespace) -> None:
    assert autostart.mount_folder() == place.folder
    assert os.stat(place.folder).st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    'spoil',
    [
        lambda place: place.runtime.chmod(0o755),
        lambda place: (place.runtime.rmdir(), place.runtime.symlink_to(place.programs)),
        lambda place: place.runtime.rmdir(),
    ],
    ids=['open', 'symlink', 'missing'],
)
def test_runtime_folder_that_is_not_private(place: SimpleNamespace, spoil: Callable[[SimpleNamespace], object]) -> None:
    if os.path.isdir(f'/run/user/{os.geteuid()}'):
        pytest.skip('the system has made a runtime folder for this user')
    spoil(place)
    assert autostart.mount_folder() == str(place.tmp / f'overmind-{os.geteuid()}')


@pytest.mark.parametrize(
    'make',
    [
        lambda path: path.mkdir(mode=0o755),
        lambda path: path.symlink_to(path.parent),
        lambda path: path.write_text(''),
    ],
    ids=['open', 'symlink', 'file'],
)
def test_mount_folder_that_is_not_private(place: SimpleNamespace, make: Callable[[Path], object]) -> None:
    make(Path(place.folder))
    with pytest.raises(StoreError, match=r'is not used as a mount point'):
        autostart.mount_folder()


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can give a folder away')
def test_mount_folder_of_somebody_else(place: SimpleNamespace) -> None:
    os.mkdir(place.folder, 0o700)
    os.chown(place.folder, 12345, 12345)
    with pytest.raises(StoreError, match='belongs to uid 12345'):
        autostart.mount_folder()


def test_mount_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (
        b'36 35 98:0 / /a\\040b rw,nosuid shared:1 - fuse.overmind-fs overmind rw,user_id=7,group_id=0\n'
        b'37 35 98:0 / /c rw - fuse.overmind-fs overmind rw,user_id=8\n'
        b'38 35 98:0 / /c rw - tmpfs tmpfs rw\n'
        b'39 35 98:0 / /d rw - fuse.other x rw,user_id=9\nbroken\n'
    )
    with tempfile.NamedTemporaryFile() as f:
        f.write(table)
        f.flush()
        real = open
        monkeypatch.setattr(
            'builtins.open', lambda path, *a, **k: real(f.name if path == '/proc/self/mountinfo' else path, *a, **k)
        )
        assert [autostart.mount_owner(p) for p in ('/a b', '/c', '/d', '/e')] == [7, None, None, None]


@pytest.fixture
def real(place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    if REAL is None or not os.path.exists('/dev/fuse'):
        pytest.skip('no overmind-fs built, or no FUSE here')
    monkeypatch.setenv('PATH', os.path.dirname(REAL) + ':/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin')
    yield place
    while autostart.mount_owner(place.folder) is not None:
        if subprocess.run([REAL, 'umount', place.folder]).returncode:
            subprocess.run(['umount', '-l', place.folder], check=True)


def test_real_daemon(real: SimpleNamespace) -> None:
    context = multiprocessing.get_context('fork')
    results, barrier = context.Queue(), context.Barrier(20)
    processes = [context.Process(target=_many, args=(results, barrier)) for _ in range(20)]
    for process in processes:
        process.start()
    got = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert got == [real.folder] * 20
    assert autostart.mount_owner(real.folder) == os.geteuid()
    with open('/proc/self/mountinfo') as table:
        assert sum(f' {real.folder} ' in line for line in table) == 1
