"""Daemons that are started under limits of their process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from integration.harness.daemon import DEFAULT_WAY, WAYS, Daemon, mounts_under
from integration.harness.holdings import status
from integration.harness.places import daemon_binary
from integration.tests.conftest import ForkChild
from integration.tests.loaders import LARGE_BYTES
from integration.tests.test_limits import assert_falls_back, truth_of

FILE = LARGE_BYTES // 2
# Root may go past hard limits, unless it has not that capability.
BOUND = ['setpriv', '--bounding-set=-sys_resource', '--inh-caps=-sys_resource', 'prlimit']

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='only root can give capabilities away')


def test_soft_limits_are_raised(tmp_path: Path, fork_child: ForkChild) -> None:
    prefix = ['prlimit', f'--fsize={FILE}:', f'--as={1 << 30}:', '--nofile=24:']
    with Daemon(tmp_path / 'mnt', *WAYS[DEFAULT_WAY], prefix=prefix) as daemon:
        for expected in ('miss', 'hit'):
            child = fork_child(daemon.root, OVERMIND_STRICT='1')
            assert child.ask('load large')['loads'][-1]['outcome'] == expected
            child.close()
        assert 'WARN' not in daemon.log_text()


def test_files_that_are_too_large_for_it(tmp_path: Path, fork_child: ForkChild) -> None:
    """SIGXFSZ is not its end; what is smaller is cached."""
    truth = truth_of(fork_child, 'large')
    with Daemon(tmp_path / 'mnt', *WAYS[DEFAULT_WAY], prefix=[*BOUND, f'--fsize={FILE}']) as daemon:
        assert daemon.log_text().count('LimitFSIZE=infinity') == 1
        child = fork_child(daemon.root)
        assert_falls_back(child, 'large', truth, 'ulimit -f')
        assert child.ask('load assorted')['misses'] == 1
        now = status(daemon.root)
        assert (now['entries'], now['bytes']['staging'], now['fills']['staging']) == (1, 0, 0)
        child.close()


@pytest.mark.one_way('nothing is mounted')
def test_too_little_address_space(tmp_path: Path) -> None:
    line = [*BOUND, f'--as={1 << 30}', str(daemon_binary()), 'mount', str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    (said,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert 'ulimit -v unlimited, or LimitAS=infinity' in said
    assert mounts_under(tmp_path) == []


def test_just_enough_address_space(tmp_path: Path, fork_child: ForkChild) -> None:
    """Not for huge pages of large arenas, which are mapped to get them; the arena has small ones then."""
    with Daemon(tmp_path / 'mnt', *WAYS[DEFAULT_WAY], prefix=[*BOUND, f'--as={2 << 30}']) as daemon:
        children = [fork_child(daemon.root, OVERMIND_STRICT='1') for _ in range(8)]
        for number, child in enumerate(children):
            child.send(f'load numbered {number}')
        assert [child.read()['misses'] for child in children] == [1] * len(children)
        assert children[0].ask('load large')['misses'] == 2
        for child in children:
            child.close()


def test_program_that_may_not_write_large_files(tmp_path: Path, fork_child: ForkChild) -> None:
    truth = truth_of(fork_child, 'large')
    with Daemon(tmp_path / 'mnt', *WAYS[DEFAULT_WAY]) as daemon:
        child = fork_child(daemon.root)
        child.ask(f'limit_file_size {FILE}')
        assert_falls_back(child, 'large', truth, 'ulimit -f')
        other = fork_child(daemon.root, OVERMIND_STRICT='1')
        assert other.ask('load large')['misses'] == 1
        other.close()
        # It does not fill, and it can map.
        assert child.ask('load large')['hits'] == 1
        child.close()
