"""Locks of a plain directory, which ``overmind gc`` may remove at any time, the tag of two that begin at once, and what
other processes do between two steps."""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from overmind import directory, reclaim
from overmind.api import load, stats
from overmind.errors import StoreError
from overmind.store import Store


def test_a_lock_that_was_removed_while_waiting(root: pathlib.Path) -> None:
    """Whoever waited for it must not hold it while another process holds the new one of that name."""
    directory.prepare(str(root))
    path = root / 'locks' / 'a'
    old = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(old, fcntl.LOCK_EX)
    waits = threading.Event()
    locks = []
    waiter = threading.Thread(target=lambda: locks.append(Store(str(root), 60).lock('a', 60, waits.set)))
    waiter.start()
    assert waits.wait(60)
    path.unlink()
    os.close(old)
    waiter.join(60)
    (lock,) = locks
    assert lock is not None
    try:
        with path.open('w') as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        lock.release()


def test_the_tag_of_another_process_that_began_first(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = directory.format_of

    def late(folder: str) -> int | None:
        monkeypatch.setattr(directory, 'format_of', real)
        real(folder)
        directory.prepare(folder)
        return None

    monkeypatch.setattr(directory, 'format_of', late)
    directory.prepare(str(root))
    assert sorted(os.listdir(root)) == ['CACHEDIR.TAG', 'locks', 'pipelines', 'staging']


def test_a_tag_that_was_not_finished(root: pathlib.Path) -> None:
    """Its process was killed; the folder is as good as empty."""
    (root / f'{directory.UNFINISHED_TAG}1').write_text('Sign')
    directory.prepare(str(root))
    assert directory.format_of(str(root)) == directory.FORMAT


def test_a_tag_that_is_a_link(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / 'tag').write_text('overmind-format: 1\n')
    (root / directory.TAG).symlink_to(tmp_path / 'tag')
    with pytest.raises((OSError, StoreError)):
        directory.prepare(str(root))
    assert os.listdir(root) == [directory.TAG]


def test_nothing_is_left_of_a_tag_that_finds_no_room(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each load would leave one more, and gc touches no folder without a tag."""

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match=f"'{root}/{directory.TAG}'"):  # the same name, and one warning, each time
        directory.prepare(str(root))
    assert os.listdir(root) == []


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> str:
    path = tmp_path / 'x.pt'
    torch.save(torch.arange(6.0), path)
    return str(path)


def between(monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[[], None]) -> None:
    """Something else happens just before a step."""
    real = getattr(directory, name)

    def late(*args: object) -> None:
        monkeypatch.setattr(directory, name, real)
        work()
        real(*args)

    monkeypatch.setattr(directory, name, late)


def test_an_entry_that_goes_while_it_is_read_is_a_miss(
    root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none that is damaged."""
    load(torch.load, checkpoint)
    between(monkeypatch, 'verify', lambda: shutil.rmtree(next((root / 'pipelines').iterdir())))
    load(torch.load, checkpoint)
    assert [(x.outcome, x.reason) for x in stats().loads] == [('miss', 'not in the cache')] * 2


def test_two_note_the_new_boot_at_once(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two threads, or two containers, which have the same pid: neither writes into the other's file."""
    load(torch.load, checkpoint)
    (entry,) = (root / 'pipelines').iterdir()
    folder = os.open(entry, os.O_RDONLY)
    sums = {'manifest': 1}
    real = os.fsync
    seen = []

    def second(fd: int) -> None:
        monkeypatch.setattr(os, 'fsync', real)
        directory._record(folder, sums)
        seen.append((entry / directory.WRITTEN).read_text())
        real(fd)

    monkeypatch.setattr(os, 'fsync', second)
    directory._record(folder, sums)
    os.close(folder)
    assert seen == [(entry / directory.WRITTEN).read_text()]
    assert not [name for name in os.listdir(entry) if name.startswith('.')]


def test_an_entry_that_is_evicted_while_it_is_replaced(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.prepare(str(root))
    for folder in ('staging', 'pipelines'):
        (root / folder / 'a').mkdir()
        (root / folder / 'a' / folder).touch()
    real = os.rename

    def rename(source: str, target: str, **folders: int) -> None:
        if target.startswith(f'{root}/staging'):
            shutil.rmtree(source)
        real(source, target, **folders)

    monkeypatch.setattr(os, 'rename', rename)
    directory.publish(str(root), 'a')
    assert os.listdir(root / 'pipelines' / 'a') == ['staging']


def test_two_collect_at_once(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One removes the lock that the other has just opened."""
    directory.prepare(str(root))
    (root / 'staging' / 'a').mkdir()
    real = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        real(fd, operation)
        (root / 'locks' / 'a').unlink(missing_ok=True)

    monkeypatch.setattr(fcntl, 'flock', flock)
    cache = reclaim.Cache(str(root), dry_run=False)
    try:
        assert cache.collect(0, None).removed == []
    finally:
        cache.close()


@pytest.fixture
def layered(root: pathlib.Path, tmp_path: pathlib.Path, checkpoint: str) -> Iterator[pathlib.Path]:
    """A cache with an entry that is part of the image of a container."""
    load(torch.load, checkpoint)
    for name in ('upper', 'work'):
        (tmp_path / name).mkdir()
    options = f'lowerdir={root},upperdir={tmp_path / "upper"},workdir={tmp_path / "work"}'
    line = ['mount', '-t', 'overlay', 'overlay', '-o', options, str(root)]
    if subprocess.run(line, capture_output=True).returncode:
        pytest.skip('no overlay can be mounted here')
    yield root
    subprocess.run(['umount', '--lazy', str(root)], check=True)


def test_an_entry_of_an_image_is_replaced(layered: pathlib.Path, checkpoint: str) -> None:
    load(torch.load, checkpoint)
    torch.save(torch.arange(7.0), checkpoint)
    assert len(load(torch.load, checkpoint)) == len(load(torch.load, checkpoint)) == 7
    assert [x.outcome for x in stats().loads] == ['miss', 'hit', 'miss', 'hit']


def test_an_entry_of_an_image_is_collected(layered: pathlib.Path) -> None:
    cache = reclaim.Cache(str(layered), dry_run=False)
    try:
        report = cache.collect(0, None)
    finally:
        cache.close()
    assert [one.kind for one in report.removed] == ['entry', 'lock']
    assert os.listdir(layered / 'pipelines') == os.listdir(layered / 'staging') == []


def test_a_file_system_without_locks(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, 'flock', flock)
    with pytest.raises(StoreError, match='no file can be locked there'):
        load(torch.load, checkpoint)
