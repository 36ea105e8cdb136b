"""Processes, and a daemon, that lack something: the load works, or falls back to the same values with one warning."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from integration.harness.conversation import Dialogue
from integration.harness.daemon import Daemon
from integration.harness.holdings import open_files, status
from integration.tests.conftest import ForkChild, every_way
from integration.tests.loaders import LARGE_BYTES

pytestmark = pytest.mark.usefixtures('holdings')

MIB = 1 << 20
ACCESS = ('map', 'fd', 'read')


def truth_of(fork_child: ForkChild, name: str, **variables: str) -> str:
    child = fork_child(None, OVERMIND_DISABLE='1', **variables)
    digest: str = child.ask(f'load {name}')['digest']
    child.close()
    return digest


def assert_falls_back(child: Dialogue, name: str, truth: str, words: str) -> None:
    answer = child.ask(f'load {name}')
    assert (answer['loads'][-1]['outcome'], answer['digest']) == ('bypass', truth)
    assert child.stderr.count('overmind: warning') == 1, child.stderr
    assert words in child.stderr


def test_few_descriptors_and_many_tensors(daemon: Daemon, fork_child: ForkChild) -> None:
    truth = truth_of(fork_child, 'many')
    for access in (ACCESS[0], *ACCESS):
        child = fork_child(daemon.root, OVERMIND_STRICT='1', OVERMIND_ACCESS=access)
        child.ask('limit_files 256')
        answer = child.ask('load many')
        assert answer['digest'] == truth
    assert answer['hits'] == 1
    now = status(daemon.root)
    assert (now['fills']['committed'], now['hits']) == (1, 3)


def test_no_descriptor(daemon: Daemon, fork_child: ForkChild) -> None:
    truth = truth_of(fork_child, 'assorted')
    child = fork_child(daemon.root)
    child.ask('load numbered 0')  # torch opens files of its own
    child.ask('limit_files used')
    assert_falls_back(child, 'assorted', truth, 'Too many open files')


@pytest.mark.parametrize('access', ACCESS)
def test_no_address_space_to_map(daemon: Daemon, fork_child: ForkChild, access: str) -> None:
    fill = fork_child(daemon.root, OVERMIND_STRICT='1', SIZE=str(LARGE_BYTES)).ask('load sized x')
    assert fill['misses'] == 1
    truth = truth_of(fork_child, 'sized x', SIZE='1000')
    child = fork_child(daemon.root, OVERMIND_ACCESS=access, SIZE='1000')
    child.ask(f'limit_address_space {LARGE_BYTES - MIB}')
    assert_falls_back(child, 'sized x', truth, 'memory')


@every_way
def test_no_address_space_to_fill(daemon: Daemon, fork_child: ForkChild, way: str) -> None:
    """Room for the object, but not for a second one."""
    truth = truth_of(fork_child, 'large')
    child = fork_child(daemon.root)
    child.ask(f'limit_address_space {2 * LARGE_BYTES - MIB}')
    assert_falls_back(child, 'large', truth, 'memory')
    assert status(daemon.root)['fills']['committed'] == 0


def test_small_shared_memory(daemon: Daemon, fork_child: ForkChild) -> None:
    truth = truth_of(fork_child, 'large')
    children = [fork_child(daemon.root, OVERMIND_STRICT='1', OVERMIND_ACCESS=access) for access in ('map', *ACCESS)]
    children.append(fork_child(Path('/dev/shm')))
    refused = [child.ask('limit_shared_memory 64k').get('refused') for child in children]
    if any(refused):
        pytest.skip(f'no mount namespace: {refused[0]}')
    *others, alone = children
    for child in others:
        answer = child.ask('load large')
        assert (answer['digest'], answer['bypasses']) == (truth, 0)
    assert answer['hits'] == 1
    assert_falls_back(alone, 'large', truth, 'no room in the cache')


def test_daemon_without_descriptors(daemon: Daemon, fork_child: ForkChild) -> None:
    """It makes room or refuses, and goes on; no entry is half there."""
    child = fork_child(daemon.root)
    _, most = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    few = len(open_files(daemon.pid)) + 8
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (few, most))
    for number in range(20):
        answer = child.ask(f'load numbered {number}')
    assert answer['misses'] + answer['bypasses'] == 20
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (most, most))
    truth = truth_of(fork_child, 'numbered 19')
    for expected in ('misses', 'hits'):
        answer = fork_child(daemon.root, OVERMIND_STRICT='1').ask('load numbered 19')
        assert (answer[expected], answer['digest']) == (1, truth)


def test_budget_without_room(tmp_path: Path, fork_child: ForkChild) -> None:
    truth = truth_of(fork_child, 'large')
    with Daemon(tmp_path / 'small', '--max-bytes', '16MiB') as daemon:
        child = fork_child(daemon.root)
        assert_falls_back(child, 'large', truth, 'MiB: its budget is 16.0 MiB')
        assert child.ask('load assorted')['misses'] == 1
        now = status(daemon.root)
        assert (now['refused'], now['entries'], now['bytes']['staging']) == (1, 1, 0)
        # Before the daemon, which serves open files to the last.
        child.close()
