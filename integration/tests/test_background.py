"""First loads that return before their entry is there, by every way of the daemon."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.harness.conversation import Dialogue
from integration.harness.daemon import Daemon
from integration.harness.holdings import Holdings, open_files, status, wait_until
from integration.tests.conftest import ForkChild, every_way
from integration.tests.loaders import LARGE_BYTES
from integration.tests.test_faults import LOSSES, WARNING, lost

pytestmark = pytest.mark.usefixtures('holdings')


@pytest.fixture
def truth(fork_child: ForkChild) -> str:
    digest: str = fork_child(None, OVERMIND_DISABLE='1').ask('load large')['digest']
    return digest


class Held:
    """A program whose first load has returned, and whose copier does nothing yet."""

    def __init__(self, program: Dialogue, file: Path) -> None:
        self.program, self._file = program, file
        file.touch()
        program.ask(f'hold_copies {file}')
        self.answer = program.ask('load large')
        wait_until(lambda: Path(f'{file}.reached').exists(), 'nothing is being written')
        (self.copier,) = copiers_of(program.pid)

    def let_go(self) -> None:
        self._file.unlink()


@pytest.fixture
def held(daemon: Daemon, fork_child: ForkChild, tmp_path: Path) -> Iterator[Held]:
    yield Held(fork_child(daemon.root, OVERMIND_FILL='auto'), tmp_path / 'hold')
    (tmp_path / 'hold').unlink(missing_ok=True)


def copiers_of(pid: int) -> list[int]:
    children = [n for path in Path(f'/proc/{pid}/task').glob('*/children') for n in path.read_text().split()]
    return [int(n) for n in children if Path(f'/proc/{n}/comm').read_text() == 'overmind-fill\n']


def runs(pid: int) -> bool:
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] not in 'ZX'
    except (FileNotFoundError, ProcessLookupError):
        return False


@every_way
def test_what_is_written_is_what_was_loaded(
    daemon: Daemon, fork_child: ForkChild, held: Held, truth: str, way: str
) -> None:
    """Whatever the program does with it meanwhile; and it has its own memory."""
    assert (held.answer['digest'], held.answer['misses']) == (truth, 1)
    assert held.program.ask('overwrite')['digest'] != truth
    assert os.listdir(daemon.root / 'pipelines') == []
    held.program.ask('drop')
    held.let_go()
    (load,) = held.program.ask('finish')['loads']
    assert (load['outcome'], load['access'] or way) == ('miss', way or load['access'])
    assert copiers_of(held.program.pid) == []
    reader = fork_child(daemon.root, OVERMIND_STRICT='1').ask('load large')
    assert (reader['digest'], reader['hits']) == (truth, 1)
    assert held.program.stderr == ''


def test_others_wait_for_it(daemon: Daemon, fork_child: ForkChild, held: Held, truth: str) -> None:
    waiter = fork_child(daemon.root, OVERMIND_STRICT='1')
    waiter.send('load large')
    wait_until(lambda: any('/locks/' in name for name in open_files(waiter.pid)), 'it does not wait')
    held.let_go()
    answer = waiter.read()
    assert (answer['digest'], answer['hits'], answer['misses']) == (truth, 1, 0)


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_a_program_that_is_killed(
    daemon: Daemon, holdings: Holdings, fork_child: ForkChild, held: Held, truth: str, number: int
) -> None:
    """Nothing of it stays, and who waits takes over."""
    waiter = fork_child(daemon.root, OVERMIND_STRICT='1')
    waiter.send('load large')
    wait_until(lambda: any('/locks/' in name for name in open_files(waiter.pid)), 'it does not wait')
    os.kill(held.program.pid, number)
    answer = waiter.read()
    assert (answer['digest'], answer['misses']) == (truth, 1)
    wait_until(lambda: not runs(held.copier), 'the copier lives on')
    assert os.listdir(daemon.root / 'staging') == []
    now = status(daemon.root)
    assert (now['fills']['committed'], now['fills']['failed']) == (1, 1)
    assert now['bytes']['cached'] < 2 * LARGE_BYTES


def test_a_program_that_is_killed_without_a_successor(daemon: Daemon, held: Held) -> None:
    held.program.kill()
    wait_until(lambda: set(status(daemon.root)['bytes'].values()) == {0}, lambda: status(daemon.root))
    wait_until(lambda: not runs(held.copier), 'the copier lives on')


@LOSSES
@every_way
def test_the_daemon_is_lost(
    daemon: Daemon, fork_child: ForkChild, tmp_path: Path, truth: str, loss: str, way: str
) -> None:
    held = Held(fork_child(daemon.root, OVERMIND_FILL='auto', OVERMIND_DEADLINE='0.5'), tmp_path / 'hold')
    with lost(daemon, loss):
        held.let_go()
        after = held.program.ask('finish')
        assert (after['misses'], after['bypasses']) == (0, 1)
        assert held.program.stderr.count(WARNING) == 1, held.program.stderr
        assert 'loaded, but not kept in the cache' in held.program.stderr
        assert held.program.ask('digest')['digest'] == truth
        assert held.program.finish() == 0


def test_a_child_of_the_program_holds_up_nothing(daemon: Daemon, held: Held) -> None:
    child = held.program.ask('fork')['pid']
    held.let_go()
    assert held.program.ask('finish')['misses'] == 1
    assert runs(child)
    assert len(os.listdir(daemon.root / 'pipelines')) == 1


def test_the_copier_is_killed(daemon: Daemon, held: Held) -> None:
    """As the kernel does where memory is short."""
    os.kill(held.copier, signal.SIGKILL)
    held.let_go()
    assert held.program.ask('finish')['bypasses'] == 1
    assert held.program.stderr.count(WARNING) == 1
    assert os.listdir(daemon.root / 'pipelines') == os.listdir(daemon.root / 'staging') == []


def test_no_room(daemon: Daemon, fork_child: ForkChild, tmp_path: Path, truth: str) -> None:
    with Daemon(tmp_path / 'small', '--max-bytes=16MiB') as small:
        program = fork_child(small.root, OVERMIND_FILL='auto')
        assert program.ask('load large')['digest'] == truth
        assert program.ask('finish')['bypasses'] == 1
        assert 'its budget is 16.0 MiB' in program.stderr
        assert program.ask('load large')['digest'] == truth
        program.close()
