"""Locks of a plain directory, which ``overmind gc`` may remove at any time, and the tag of two that begin at once."""

from __future__ import annotations

import fcntl
import os
import pathlib
import threading

import pytest

from overmind import directory
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
