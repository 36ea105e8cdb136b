"""Waiting for others, and for a root that hangs, has an end."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from failing import Falls, assert_made, held_open, make

from overmind import deadline, store
from overmind.api import explain, load, stats
from overmind.errors import OvermindError


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
    structure = entry / 'structure.pkl'
    structure.unlink()
    os.mkfifo(structure)  # to open it is to wait for somebody who writes
    assert_made(load(make, checkpoint))
    (arena,) = (entry / 'tensors').iterdir()
    until = time.monotonic() + 30
    while len(held_open(str(arena))) != 1:
        assert time.monotonic() < until
        time.sleep(0.01)
    while True:
        try:
            os.close(os.open(structure, os.O_WRONLY | os.O_NONBLOCK))
            break
        except OSError:  # it does not wait there yet
            assert time.monotonic() < until
            time.sleep(0.01)
    until = time.monotonic() + 5
    while held_open(str(arena)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not held_open(str(arena))
