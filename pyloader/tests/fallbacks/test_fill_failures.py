"""Filling fails: the object is the real one."""

from __future__ import annotations

import _thread
import errno
import gc
import os
import pathlib
import resource
import subprocess
import threading
from typing import Any

import pytest
import torch
from failing import Falls, Prickly, assert_clean, assert_made, held_open, make, prickly, unsettled

from overmind.api import explain, load


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
        assert_made(falls_back('ulimit -f unlimited', make, checkpoint))
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
    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, 'start', start)
    monkeypatch.setattr(_thread, 'start_new_thread', start)
    assert_made(falls_back("can't start new thread", make, checkpoint))
