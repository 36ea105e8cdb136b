"""Whatever happens to the cache, the program gets its object."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from overmind.settings import Settings

from integration.harness.conversation import Dialogue
from integration.harness.daemon import Daemon, command, mounts_under
from integration.harness.holdings import open_files, wait_until
from integration.tests.conftest import ForkChild, every_shared_way, every_way
from integration.tests.stages import STAGES

pytestmark = pytest.mark.usefixtures('holdings')

WARNING = 'overmind: warning'


@pytest.fixture
def truth(fork_child: ForkChild) -> str:
    digest: str = fork_child(None, OVERMIND_DISABLE='1').ask('load assorted')['digest']
    return digest


def loads_uncached(child: Dialogue, truth: str) -> None:
    """Twice, with one warning in all."""
    for _ in range(2):
        answer = child.ask('load assorted')
        assert answer['digest'] == truth
    assert (answer['hits'], answer['misses'], answer['bypasses']) == (0, 0, 2)
    assert child.stderr.count(WARNING) == 1, child.stderr


def test_dead_daemon(daemon: Daemon, fork_child: ForkChild, truth: str) -> None:
    """Which is seen without waiting for a deadline: a child has less patience than this one."""
    daemon.kill()
    loads_uncached(fork_child(daemon.root, OVERMIND_DEADLINE='3600'), truth)


def test_dead_daemon_strictly(daemon: Daemon, fork_child: ForkChild) -> None:
    daemon.kill()
    assert fork_child(daemon.root, OVERMIND_STRICT='1').ask('load assorted')['raised'] == 'StoreError'


def test_daemon_dies_between_two_loads(daemon: Daemon, fork_child: ForkChild, truth: str) -> None:
    child = fork_child(daemon.root)
    child.ask('load large')
    daemon.kill()
    answer = child.ask('load assorted')
    assert (answer['digest'], answer['bypasses']) == (truth, 1)
    assert child.stderr.count(WARNING) == 1, child.stderr


def test_hanging_daemon_hangs_nobody(daemon: Daemon, fork_child: ForkChild, truth: str) -> None:
    assert Settings().deadline_seconds <= 5
    child = fork_child(daemon.root, OVERMIND_DEADLINE='1')
    with daemon.suspended():
        for _ in range(2):
            answer = child.ask('load assorted')
            assert answer['digest'] == truth
    assert answer['bypasses'] == 2
    assert 'the daemon hangs' in answer['reasons'][0]
    # The second load has not tried again, and for how long is no new warning each second.
    assert 'the daemon is tried again in' in answer['reasons'][1]
    assert child.stderr.count(WARNING) == 1, child.stderr


@every_way
def test_memory_can_be_let_go_while_the_daemon_hangs(daemon: Daemon, fork_child: ForkChild, way: str) -> None:
    child = fork_child(daemon.root)
    child.ask('load assorted')
    loaded = child.ask('load assorted')
    assert (loaded['hits'], loaded['loads'][-1]['access']) == (1, way)
    with daemon.suspended():
        child.ask('drop')
        assert child.finish() == 0


@pytest.mark.parametrize('way', ['fd'], indirect=True)
def test_without_its_socket_arenas_are_copied(daemon: Daemon, fork_child: ForkChild, truth: str) -> None:
    fork_child(daemon.root).ask('load assorted')
    (daemon.root / 'control').resolve().unlink()
    child = fork_child(daemon.root)
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
def test_open_arena_is_a_lease(daemon: Daemon, fork_child: ForkChild) -> None:
    fork_child(daemon.root).ask('load assorted')
    child = fork_child(daemon.root)
    child.ask('load assorted')
    (entry,) = (daemon.root / 'pipelines').iterdir()
    assert child.pid in map(int, os.getxattr(entry, 'user.overmind.lease_pids').split(b','))
    child.ask('drop')

    def held_by_child() -> bool:
        return str(child.pid).encode() in os.getxattr(entry, 'user.overmind.lease_pids').split(b',')

    wait_until(lambda: not held_by_child(), 'it keeps its lease')


def test_no_root(fork_child: ForkChild, truth: str) -> None:
    answer = fork_child(None).ask('load assorted')
    assert (answer['digest'], answer['hits'], answer['misses']) == (truth, 0, 0)


def test_root_that_is_not_there(tmp_path: Path, fork_child: ForkChild, truth: str) -> None:
    loads_uncached(fork_child(tmp_path / 'nowhere'), truth)
    assert fork_child(tmp_path / 'nowhere', OVERMIND_STRICT='1').ask('load assorted')['raised'] == 'StoreError'


@pytest.mark.parametrize('end', ['evict', 'rmdir', 'rm', 'SIGKILL'])
@every_way
def test_mapped_entry_outlives(daemon: Daemon, fork_child: ForkChild, truth: str, end: str) -> None:
    fork_child(daemon.root).ask('load assorted')
    child = fork_child(daemon.root)
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


LOSSES = pytest.mark.parametrize('loss', ['killed', 'suspended'])


def lost(daemon: Daemon, loss: str) -> AbstractContextManager[None]:
    if loss == 'suspended':
        return daemon.suspended()
    daemon.kill()
    return nullcontext()


@LOSSES
@pytest.mark.parametrize('stage', STAGES)
@every_way
def test_daemon_is_lost_in_the_middle_of_a_fill(
    daemon: Daemon, fork_child: ForkChild, truth: str, stage: str, loss: str, way: str
) -> None:
    child = fork_child(daemon.root)
    child.ask(f'stop_at {stage}')
    assert child.ask('load assorted') == {'stage': stage}
    with lost(daemon, loss):
        answer = child.ask('0.5')
        assert (answer['digest'], answer['misses'], answer['bypasses']) == (truth, 0, 1)
        assert child.stderr.count(WARNING) == 1, child.stderr
        assert child.finish() == 0


@LOSSES
@pytest.mark.parametrize('stage', ['half copied', 'let go', 'before rename'])
@every_shared_way
def test_daemon_is_lost_when_the_object_was_given_up(
    daemon: Daemon, fork_child: ForkChild, stage: str, loss: str, way: str
) -> None:
    """A large object is let go while it is copied: it is there again, from what is copied."""
    truth = fork_child(None, OVERMIND_DISABLE='1').ask('load large')['digest']
    child = fork_child(daemon.root)
    child.ask(f'stop_at {stage}')
    assert child.ask('load large') == {'stage': stage}
    with lost(daemon, loss):
        answer = child.ask('0.5')
        assert (answer['digest'], answer['misses'], answer['bypasses']) == (truth, 0, 1)
        assert child.stderr.count(WARNING) == 1, child.stderr
        assert child.ask('overwrite')['digest'] != truth
        assert child.finish() == 0


@LOSSES
@every_way
def test_daemon_is_lost_in_the_middle_of_a_hit(
    daemon: Daemon, fork_child: ForkChild, truth: str, loss: str, way: str
) -> None:
    """What is open can be mapped without it, and cannot be read."""
    assert fork_child(daemon.root, OVERMIND_STRICT='1').ask('load assorted')['misses'] == 1
    child = fork_child(daemon.root)
    child.ask('stop_at entry open')
    assert child.ask('load assorted') == {'stage': 'entry open'}
    with lost(daemon, loss):
        answer = child.ask('0.5')
        assert (answer['digest'], answer['misses']) == (truth, 0)
        assert (answer['hits'], answer['bypasses']) == ((0, 1) if way == 'read' else (1, 0))
        assert child.finish() == 0


def test_waiter_whose_daemon_dies(daemon: Daemon, fork_child: ForkChild, truth: str) -> None:
    filler, waiter = fork_child(daemon.root), fork_child(daemon.root)
    filler.ask('stop_at lock held')
    assert 'stage' in filler.ask('load assorted')
    waiter.send('load assorted')
    wait_until(lambda: any('/locks/' in name for name in open_files(waiter.pid)), 'it does not wait')
    daemon.kill()
    for answer in (filler.ask(), waiter.read()):
        assert (answer['digest'], answer['bypasses']) == (truth, 1)


def test_clients_go_on_computing_without_the_daemon(daemon: Daemon, fork_child: ForkChild, tmp_path: Path) -> None:
    """With their weights in each of the ways; a page that was never touched before is as good as the others."""
    filler = fork_child(daemon.root, OVERMIND_STRICT='1')
    truth = filler.ask('load large')['digest']
    filler.close()
    (tmp_path / 'wait').touch()
    children = [fork_child(daemon.root, OVERMIND_STRICT='1', OVERMIND_ACCESS=way) for way in ('map', 'fd', 'read')]
    for child in children:
        assert child.ask('load_untouched large')['hits'] == 1
        child.send(f'compute {tmp_path}')
    daemon.kill()

    def rounds() -> list[int]:
        return [path.stat().st_size for path in tmp_path.glob('rounds-*')]

    wait_until(lambda: len(rounds()) == len(children) and min(rounds()) > 1, rounds)
    (tmp_path / 'wait').unlink()
    assert [child.read()['results'] for child in children] == [[truth]] * len(children)


@pytest.mark.parametrize('notices', [True, False])
def test_clients_go_on_with_the_next_daemon(daemon: Daemon, fork_child: ForkChild, truth: str, notices: bool) -> None:
    """Which has other ways to give its memory, and whose mount takes the place of the dead one."""
    child = fork_child(daemon.root)
    assert child.ask('load assorted')['misses'] == 1
    daemon.kill()
    if notices:
        assert child.ask('load assorted')['bypasses'] == 1
    with Daemon(daemon.root, '--passthrough=off', '--fd-passing=off', log=daemon.log) as second:
        assert len(mounts_under(daemon.root)) == 1
        for expected in ('misses', 'hits'):
            before = child.ask('stats')
            answer = child.ask('load assorted')
            assert answer[expected] == before[expected] + 1
            assert (answer['digest'], answer['loads'][-1]['access']) == (truth, 'read')
        second.kill()
        assert child.ask('digest')['digest'] == truth
        child.close()


def test_folder_below_the_mount_is_no_cache(daemon: Daemon, fork_child: ForkChild, truth: str) -> None:
    """A program that has seen the mount puts nothing where it was, so that there can be another one."""
    child = fork_child(daemon.root)
    assert child.ask('load assorted')['misses'] == 1
    os.kill(daemon.pid, signal.SIGTERM)
    wait_until(lambda: not daemon.alive(), 'the daemon goes on')
    assert mounts_under(daemon.root) == []
    answer = child.ask('load assorted')
    assert (answer['digest'], answer['bypasses']) == (truth, 1)
    assert 'the daemon is gone' in child.stderr
    assert os.listdir(daemon.root) == []
    with Daemon(daemon.root, log=daemon.log):
        assert child.ask('load assorted')['misses'] == 2
        child.close()
