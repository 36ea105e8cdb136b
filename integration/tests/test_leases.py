"""What a process has mapped stays, and is let go of when the process ends, however it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from integration.harness.conversation import Dialogue
from integration.harness.daemon import Daemon, command
from integration.harness.holdings import Holdings, arenas, status, wait_until
from integration.tests.conftest import ForkChild, every_way
from integration.tests.loaders import LARGE_BYTES

pytestmark = pytest.mark.usefixtures('holdings')


def finishes(child: Dialogue) -> None:
    assert child.finish() == 0


def dies(number: int) -> Callable[[Dialogue], None]:
    def end(child: Dialogue) -> None:
        os.kill(child.pid, number)
        assert child.wait() == -number

    return end


def replaces_itself(child: Dialogue) -> None:
    assert child.ask('replace') == {}


def drops(child: Dialogue) -> None:
    child.ask('drop')
    assert child.ask('mappings') == {'live': 0}


ENDS: dict[str, Callable[[Dialogue], None]] = {
    'exit': finishes,
    'SIGKILL': dies(signal.SIGKILL),
    'SIGSEGV': dies(signal.SIGSEGV),
    'exec': replaces_itself,
    'drop': drops,
}


def leases(daemon: Daemon) -> int:
    (entry,) = json.loads(command('ls', '--json', root=daemon.root).stdout)
    count: int = entry['leases']
    assert count == status(daemon.root)['leases']
    return count


@every_way
def test_lease_ends_with_its_process(daemon: Daemon, fork_child: ForkChild, way: str) -> None:
    assert fork_child(daemon.root, OVERMIND_STRICT='1').ask('load assorted')['misses'] == 1
    wait_until(lambda: leases(daemon) == 1, 'the filler has no lease')
    children = {end: fork_child(daemon.root, OVERMIND_STRICT='1') for end in ENDS}
    for child in children.values():
        answer = child.ask('load assorted')
        assert (answer['hits'], answer['loads'][-1]['access']) == (1, way)
    assert leases(daemon) == 1 + len(ENDS)
    for left, (name, child) in zip(range(len(ENDS), 0, -1), children.items(), strict=True):
        ENDS[name](child)
        wait_until(lambda left=left: leases(daemon) == left, f'{name}: not {left} leases')  # type: ignore[misc]


@every_way
def test_removed_entry_drains_until_its_last_reader_dies(
    daemon: Daemon, holdings: Holdings, fork_child: ForkChild, way: str
) -> None:
    filler, reader = (fork_child(daemon.root, OVERMIND_STRICT='1') for _ in range(2))
    truth = filler.ask('load large')['digest']
    assert reader.ask('load large')['hits'] == 1
    (entry,) = (daemon.root / 'pipelines').iterdir()
    entry.rmdir()

    def sizes() -> dict[str, int]:
        found: dict[str, int] = status(daemon.root)['bytes']
        return found

    assert sizes()['cached'] == 0
    assert sizes()['draining'] >= LARGE_BYTES
    assert holdings.memory.nbytes() >= LARGE_BYTES * holdings.memory.is_known
    filler.kill()
    assert reader.ask('digest')['digest'] == truth
    assert sizes()['draining'] >= LARGE_BYTES
    reader.kill()
    wait_until(lambda: sizes()['draining'] == 0, sizes)
    wait_until(lambda: arenas(daemon.pid) == [], lambda: arenas(daemon.pid))
    wait_until(lambda: holdings.memory.nbytes() < 1 << 20, holdings.memory.nbytes)


def test_lease_lasts_as_long_as_a_forked_process(daemon: Daemon, fork_child: ForkChild) -> None:
    child = fork_child(daemon.root, OVERMIND_STRICT='1')
    child.ask('load large')
    forked = child.ask('fork')['pid']
    (entry,) = (daemon.root / 'pipelines').iterdir()
    entry.rmdir()
    os.kill(forked, signal.SIGSTOP)  # so that it does not end with its parent
    child.kill()
    assert status(daemon.root)['bytes']['draining'] >= LARGE_BYTES
    os.kill(forked, signal.SIGKILL)
    wait_until(lambda: status(daemon.root)['bytes']['draining'] == 0, lambda: status(daemon.root))
