"""Locks and children, threads, loaders in loaders, exceptions of the loader."""

from __future__ import annotations

import fcntl
import logging
import os
import pathlib
import pickle
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from failing import assert_clean, fails, leaves_a_child, outer, slow

from overmind import store
from overmind.api import load, stats
from overmind.errors import OvermindError


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
