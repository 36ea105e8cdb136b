"""Many processes that want one model load it once, whatever becomes of the one that loads."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration.harness.conversation import Dialogue
from integration.harness.daemon import Daemon
from integration.harness.holdings import Holdings, open_files, status, wait_until
from integration.tests.conftest import ForkChild, every_way
from integration.tests.loaders import LARGE_BYTES
from integration.tests.stages import STAGES

pytestmark = pytest.mark.usefixtures('holdings')


def is_at_the_lock(child: Dialogue) -> bool:
    return any('/locks/' in name for name in open_files(child.pid))


def wait_at_the_lock(*children: Dialogue) -> None:
    wait_until(lambda: all(map(is_at_the_lock, children)), 'a process has not asked for the lock')


@pytest.fixture
def signs(tmp_path: Path) -> Path:
    """For loaders.held_up, which takes its time."""
    folder = tmp_path / 'signs'
    folder.mkdir()
    (folder / 'wait').touch()
    return folder


def test_eight_processes_load_once(daemon: Daemon, fork_child: ForkChild, signs: Path) -> None:
    children = [fork_child(daemon.root, OVERMIND_STRICT='1', SIGNS=str(signs)) for _ in range(8)]
    for child in children:
        child.send('load held_up x')
    wait_at_the_lock(*children)
    (signs / 'wait').unlink()
    answers = [child.read() for child in children]
    assert len(list(signs.glob('begun-*'))) == 1
    assert sorted((a['hits'], a['misses']) for a in answers) == [(0, 1), *[(1, 0)] * 7]
    assert len({answer['digest'] for answer in answers}) == 1


def start_stopped(child: Dialogue, stage: str, command: str) -> None:
    child.ask(f'stop_at {stage}')
    assert child.ask(command) == {'stage': stage}


@pytest.mark.parametrize('stage', STAGES)
def test_next_one_takes_over_from_a_killed_filler(
    daemon: Daemon, holdings: Holdings, fork_child: ForkChild, stage: str
) -> None:
    truth = fork_child(None, OVERMIND_DISABLE='1').ask('load large')['digest']
    filler, waiter = fork_child(daemon.root), fork_child(daemon.root, OVERMIND_STRICT='1')
    start_stopped(filler, stage, 'load large')
    is_staged = stage != 'lock held'
    assert os.listdir(daemon.root / 'staging') == [entry_id(daemon)] * is_staged
    assert (status(daemon.root)['bytes']['staging'] >= LARGE_BYTES) == (stage in ('half copied', 'before rename'))
    waiter.send('load large')
    wait_at_the_lock(waiter)
    filler.kill()
    answer = waiter.read()
    assert (answer['misses'], answer['bypasses'], answer['digest']) == (1, 0, truth)
    assert os.listdir(daemon.root / 'staging') == []
    now = status(daemon.root)
    assert (now['fills']['committed'], now['fills']['failed']) == (1, int(is_staged))
    assert (now['bytes']['staging'], now['bytes']['draining']) == (0, 0)
    assert now['bytes']['cached'] < 2 * LARGE_BYTES


def entry_id(daemon: Daemon) -> str:
    (found,) = os.listdir(daemon.root / 'locks')
    return found


@pytest.mark.parametrize('stage', [stage for stage in STAGES if stage != 'lock held'])
@every_way
def test_killed_filler_without_a_successor(daemon: Daemon, fork_child: ForkChild, stage: str, way: str) -> None:
    """Nobody asks for the model again, and its memory comes back all the same."""
    filler = fork_child(daemon.root)
    start_stopped(filler, stage, 'load large')
    filler.kill()
    wait_until(lambda: os.listdir(daemon.root / 'staging') == [], lambda: status(daemon.root))
    wait_until(lambda: set(status(daemon.root)['bytes'].values()) == {0}, lambda: status(daemon.root))


def test_different_models_fill_side_by_side(daemon: Daemon, fork_child: ForkChild) -> None:
    children = {name: fork_child(daemon.root, OVERMIND_STRICT='1') for name in ('large', 'assorted')}
    for name, child in children.items():
        start_stopped(child, 'half copied', f'load {name}')
    assert len(os.listdir(daemon.root / 'staging')) == 2
    for child in reversed(children.values()):
        assert child.ask()['misses'] == 1


def test_waiter_can_be_interrupted(daemon: Daemon, fork_child: ForkChild) -> None:
    filler, waiter = fork_child(daemon.root), fork_child(daemon.root, OVERMIND_STRICT='1')
    start_stopped(filler, 'lock held', 'load assorted')
    waiter.send('load assorted')
    wait_at_the_lock(waiter)
    os.kill(waiter.pid, signal.SIGINT)
    assert waiter.read()['raised'] == 'KeyboardInterrupt'
    assert not is_at_the_lock(waiter)
    assert filler.ask()['misses'] == 1
    assert waiter.ask('load assorted')['hits'] == 1


@pytest.mark.parametrize('stage', STAGES)
def test_filler_can_be_interrupted(daemon: Daemon, fork_child: ForkChild, stage: str) -> None:
    filler = fork_child(daemon.root, OVERMIND_STRICT='1')
    start_stopped(filler, stage, 'load assorted')
    os.kill(filler.pid, signal.SIGINT)
    assert filler.read()['raised'] == 'KeyboardInterrupt'
    assert not is_at_the_lock(filler)
    assert os.listdir(daemon.root / 'staging') == []
    assert fork_child(daemon.root, OVERMIND_STRICT='1').ask('load assorted')['misses'] == 1


def test_waiter_gives_up(daemon: Daemon, fork_child: ForkChild) -> None:
    filler, waiter = fork_child(daemon.root), fork_child(daemon.root, OVERMIND_WAIT='0.2')
    start_stopped(filler, 'lock held', 'load assorted')
    answer = waiter.ask('load assorted')
    assert (answer['hits'], answer['misses'], answer['bypasses']) == (0, 0, 1)
    assert waiter.stderr.count('overmind: warning') == 1, waiter.stderr
    assert 'for 0.2 s' in waiter.stderr
    assert filler.ask()['digest'] == answer['digest']
    assert waiter.ask('load assorted')['hits'] == 1
