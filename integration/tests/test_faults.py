"""Whatever happens to the cache, the program gets its object."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from integration.harness.conversation import Conversation
from integration.harness.daemon import Daemon, command
from integration.tests.conftest import StartChild, every_way

WARNING = 'overmind: warning'


@pytest.fixture
def truth(start_child: StartChild) -> str:
    digest: str = start_child(None, OVERMIND_DISABLE='1').ask('load assorted')['digest']
    return digest


def loads_uncached(child: Conversation, truth: str) -> None:
    """Twice, with one warning in all."""
    for _ in range(2):
        answer = child.ask('load assorted')
        assert answer['digest'] == truth
    assert (answer['hits'], answer['misses'], answer['bypasses']) == (0, 0, 2)
    assert child.stderr.count(WARNING) == 1, child.stderr


def test_dead_daemon(daemon: Daemon, start_child: StartChild, truth: str) -> None:
    daemon.kill()
    loads_uncached(start_child(daemon.root), truth)


def test_dead_daemon_strictly(daemon: Daemon, start_child: StartChild) -> None:
    daemon.kill()
    assert start_child(daemon.root, OVERMIND_STRICT='1').ask('load assorted')['raised'] == 'StoreError'


def test_daemon_dies_between_two_loads(daemon: Daemon, start_child: StartChild, truth: str) -> None:
    child = start_child(daemon.root)
    child.ask('load large')
    daemon.kill()
    answer = child.ask('load assorted')
    assert (answer['digest'], answer['bypasses']) == (truth, 1)
    assert child.stderr.count(WARNING) == 1, child.stderr


def test_hanging_daemon_hangs_nobody(daemon: Daemon, start_child: StartChild, truth: str) -> None:
    child = start_child(daemon.root, OVERMIND_DEADLINE='1')
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        answer = child.ask('load assorted')
        assert answer['digest'] == truth
        assert answer['bypasses'] == 1
        assert time.monotonic() - start < 15
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


@every_way
def test_memory_can_be_let_go_while_the_daemon_hangs(daemon: Daemon, start_child: StartChild, way: str) -> None:
    child = start_child(daemon.root)
    child.ask('load assorted')
    loaded = child.ask('load assorted')
    assert (loaded['hits'], loaded['loads'][-1]['access']) == (1, way)
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        child.ask('drop')
        assert child.finish() == 0
        assert time.monotonic() - start < 5
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


@pytest.mark.parametrize('way', ['fd'], indirect=True)
def test_without_its_socket_arenas_are_copied(daemon: Daemon, start_child: StartChild, truth: str) -> None:
    start_child(daemon.root).ask('load assorted')
    (daemon.root / 'control').resolve().unlink()
    child = start_child(daemon.root)
    for _ in range(2):
        answer = child.ask('load assorted')
        assert answer['digest'] == truth
    assert [load['access'] for load in answer['loads']] == ['read', 'read']
    assert answer['hits'] == 2
    assert child.stderr.count(WARNING) == 1, child.stderr
    filled = child.ask('load large')
    assert (filled['misses'], filled['loads'][-1]['access']) == (1, 'read')
    child.close()


@pytest.mark.parametrize('way', ['fd'], indirect=True)
def test_open_arena_is_a_lease(daemon: Daemon, start_child: StartChild) -> None:
    start_child(daemon.root).ask('load assorted')
    child = start_child(daemon.root)
    child.ask('load assorted')
    (entry,) = (daemon.root / 'pipelines').iterdir()
    assert child.pid in map(int, os.getxattr(entry, 'user.overmind.lease_pids').split(b','))
    child.ask('drop')
    deadline = time.monotonic() + 5
    while str(child.pid).encode() in os.getxattr(entry, 'user.overmind.lease_pids').split(b','):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_root(start_child: StartChild, truth: str) -> None:
    answer = start_child(None).ask('load assorted')
    assert (answer['digest'], answer['hits'], answer['misses']) == (truth, 0, 0)


def test_root_that_is_not_there(tmp_path: Path, start_child: StartChild, truth: str) -> None:
    loads_uncached(start_child(tmp_path / 'nowhere'), truth)
    assert start_child(tmp_path / 'nowhere', OVERMIND_STRICT='1').ask('load assorted')['raised'] == 'StoreError'


@pytest.mark.parametrize(
    ('way', 'end'),
    [
        *[('passthrough', end) for end in ('evict', 'rmdir', 'rm', 'SIGKILL')],
        ('fd', 'rm'),
        ('fd', 'SIGKILL'),
        ('read', 'SIGKILL'),
    ],
    indirect=['way'],
)
def test_mapped_entry_outlives(daemon: Daemon, start_child: StartChild, truth: str, end: str) -> None:
    start_child(daemon.root).ask('load assorted')
    child = start_child(daemon.root)
    assert child.ask('load assorted')['hits'] == 1
    (entry,) = (daemon.root / 'pipelines').iterdir()
    if end == 'evict':
        command('evict', entry.name, root=daemon.root)
    elif end == 'rmdir':
        entry.rmdir()
    elif end == 'rm':
        os.system(f'rm -r {entry}')
    else:
        daemon.kill()
    assert child.ask('digest')['digest'] == truth
    if end != 'SIGKILL':
        assert not entry.exists()
        assert child.ask('load assorted')['misses'] == 1
    assert child.ask('overwrite')['digest'] != truth
    assert child.finish() == 0


def test_killed_filler_leaves_nothing(daemon: Daemon, start_child: StartChild, tmp_path: Path) -> None:
    signs = tmp_path / 'signs'
    signs.mkdir()
    (signs / 'wait').touch()
    first, second = start_child(daemon.root), start_child(daemon.root)
    first.send(f'load slow {signs}')
    deadline = time.monotonic() + 30
    while not list(signs.glob('begun-*')):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.kill()
    (signs / 'wait').unlink()
    start = time.monotonic()
    answer = second.ask(f'load slow {signs}')
    assert (answer['misses'], answer['bypasses']) == (1, 0)
    assert time.monotonic() - start < 20
    assert list((daemon.root / 'staging').iterdir()) == []


def test_daemon_without_room(tmp_path: Path, start_child: StartChild) -> None:
    with Daemon(tmp_path / 'mnt', '--max-bytes', '16MiB') as daemon:
        child = start_child(daemon.root)
        answer = child.ask('load large')
        assert (answer['hits'], answer['misses'], answer['bypasses']) == (0, 0, 1)
        assert child.stderr.count(WARNING) == 1, child.stderr
        assert child.ask('load assorted')['misses'] == 1
        # Before the daemon, which serves open files to the last.
        child.close()


@pytest.mark.parametrize('blow', [signal.SIGKILL, signal.SIGSTOP])
def test_daemon_is_lost_while_a_load_runs(
    daemon: Daemon, start_child: StartChild, tmp_path: Path, blow: signal.Signals
) -> None:
    """The child holds the lock then; letting go of it must neither raise nor hang."""
    signs = tmp_path / 'signs'
    signs.mkdir()
    (signs / 'wait').touch()
    child = start_child(daemon.root, OVERMIND_DEADLINE='1')
    child.send(f'load slow {signs}')
    while not list(signs.glob('begun-*')):
        time.sleep(0.01)
    os.kill(daemon.pid, blow)
    try:
        start = time.monotonic()
        (signs / 'wait').unlink()
        answer = child.read()
        assert (answer['hits'], answer['misses'], answer['bypasses']) == (0, 0, 1)
        assert child.finish() == 0
        assert time.monotonic() - start < 15
    finally:
        if blow is signal.SIGSTOP:
            os.kill(daemon.pid, signal.SIGCONT)
