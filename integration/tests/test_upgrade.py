"""A new daemon takes over while programs load: they notice nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.harness.daemon import WAYS, Daemon
from integration.tests.conftest import StartChild, every_shared_way

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='only root can take a mount over')


def until(condition: object) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def replaced(old: Daemon, way: str) -> Iterator[Daemon]:
    with Daemon(old.root, '--replace', *WAYS[way], log=old.log) as new:
        until(lambda: json.loads((old.root / 'status.json').read_text())['pid'] == new.pid)
        yield new


def stopped(pid: int) -> bool:
    return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] == 'T'


@every_shared_way  # a daemon without a socket hands nothing over, and refuses --replace
def test_replaced_while_a_load_runs(daemon: Daemon, start_child: StartChild, way: str) -> None:
    """Whoever waits for the filler goes on waiting, whichever daemon it came to first."""
    holder, filler, waiter = [start_child(daemon.root, OVERMIND_STRICT='1') for _ in range(3)]
    digest = holder.ask('load assorted')['digest']
    filler.send('load stopping')
    until(lambda: stopped(filler.pid))
    waiter.send('load stopping')
    with replaced(daemon, way):
        late = start_child(daemon.root, OVERMIND_STRICT='1')
        late.send('load stopping')
        assert holder.ask('digest')['digest'] == digest
        again = holder.ask('load assorted')
        assert (again['hits'], again['bypasses'], again['loads'][-1]['access']) == (1, 0, way)
        assert daemon.alive()
        os.kill(filler.pid, signal.SIGCONT)
        filled = filler.read()
        assert (filled['misses'], filled['bypasses']) == (1, 0)
        for child in (waiter, late):
            answer = child.read()
            assert (answer['hits'], answer['misses'], answer['bypasses']) == (1, 0, 0)
        for child in (holder, filler, waiter, late):
            child.close()
        until(lambda: not daemon.alive())
