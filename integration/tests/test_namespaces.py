"""A daemon whose PID namespace is not that of its clients, and clients in user namespaces within others."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.harness.daemon import WAYS, Daemon, command, detach
from integration.harness.holdings import open_files, status, wait_until
from integration.harness.places import daemon_binary
from integration.tests.conftest import ForkChild, serving
from integration.tests.spaces import Space
from integration.tests.stages import STAGES

# /proc is that of the new namespace, and the mount comes out through the folder above it.
_FURNISH = 'mount --make-private /proc && mount -t proc proc /proc && exec "$0" "$@"'
APART = ['unshare', '--pid', '--fork', '--kill-child', '--mount', '--propagation=unchanged', 'sh', '-ec', _FURNISH]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def apart(tmp_path: Path, way: str, _nothing_left: None) -> Iterator[Daemon]:
    """A daemon that sees no client: to it they all are process 0."""
    if os.geteuid() != 0:
        pytest.skip('only root can make PID namespaces')
    above = tmp_path / 'cache'
    above.mkdir()
    subprocess.run(['mount', '--bind', above, above], check=True)
    subprocess.run(['mount', '--make-shared', above], check=True)
    try:
        with Daemon(above / 'mnt', *WAYS[way], prefix=APART) as daemon:
            assert status(daemon.root)['pid'] < 10
            yield daemon
    finally:
        detach(above)


def test_leases_and_hits_of_unseen_clients(apart: Daemon, fork_child: ForkChild, way: str) -> None:
    filler, reader = (fork_child(apart.root, OVERMIND_STRICT='1') for _ in range(2))
    truth = filler.ask('load assorted')['digest']
    answer = reader.ask('load assorted')
    assert (answer['hits'], answer['digest'], answer['loads'][-1]['access']) == (1, truth, way)
    (entry,) = json.loads(command('ls', '--json', root=apart.root).stdout)
    assert (entry['leases'], entry['lease_pids']) == (2, [])
    reader.kill()
    wait_until(lambda: status(apart.root)['leases'] == 1, 'the lease of a dead process stays')
    command('evict', entry['id'], root=apart.root)
    assert filler.ask('digest')['digest'] == truth
    filler.close()


@pytest.mark.parametrize('stage', STAGES)
def test_killed_filler_that_is_not_seen(apart: Daemon, fork_child: ForkChild, stage: str) -> None:
    """With a successor that waits, whose lock cannot be told from that of the dead one; then without."""
    filler, waiter = fork_child(apart.root), fork_child(apart.root, OVERMIND_STRICT='1')
    filler.ask(f'stop_at {stage}')
    assert filler.ask('load large') == {'stage': stage}
    waiter.send('load large')
    wait_until(lambda: any('/locks/' in name for name in open_files(waiter.pid)), 'it does not wait')
    filler.kill()
    assert waiter.read()['misses'] == 1
    alone = fork_child(apart.root)
    alone.ask(f'stop_at {stage}')
    assert alone.ask('load numbered 1') == {'stage': stage}
    alone.kill()
    wait_until(lambda: status(apart.root)['fills']['staging'] == 0, 'a dead fill stays')
    assert os.listdir(apart.root / 'staging') == []
    waiter.close()


def test_unmounted_from_outside(apart: Daemon) -> None:
    """The number that its status has is that of somebody else here."""
    command('umount', str(apart.root))
    wait_until(lambda: not apart.alive(), 'it goes on')


@pytest.mark.one_way('nothing is mounted')
def test_without_a_proc_of_its_own(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip('only root can make PID namespaces')
    line = ['unshare', '--pid', '--fork', '--kill-child', str(daemon_binary()), 'mount', str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    (said,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert 'mount -t proc proc /proc' in said


@pytest.mark.parametrize('way', WAYS, indirect=True)
def test_user_namespace_in_another(tmp_path: Path, fork_child: ForkChild, way: str) -> None:
    """A client there knows its number in the namespace around it only, which is another one for the daemon: it loads
    without the cache, and nobody else's ids are filled by it."""
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    outer = Space(['--user', '--mount', '--propagation=slave'], 'true')
    with serving(tmp_path / 'mnt', way, '--allow-other') as daemon, outer:
        for kind in ('uid_map', 'gid_map'):
            Path(f'/proc/{outer.pid}/{kind}').write_text('0 100000 1000')
        filler = fork_child(daemon.root, OVERMIND_STRICT='1')
        truth = filler.ask('load assorted')['digest']
        filler.close()
        within = outer.line('--', kinds='user,mnt')[:-1]
        with Space(['--user', '--map-root-user', '--mount', '--propagation=slave'], 'true', within) as inner:
            child = fork_child(daemon.root)
            child.ask(f'enter {inner.pid} user,mnt')
            child.ask('become 0')
            for name in ('assorted', 'numbered 1'):
                answer = child.ask(f'load {name}')
                assert answer['loads'][-1]['outcome'] == 'bypass'
                assert name != 'assorted' or answer['digest'] == truth
            assert child.stderr.count('or its user namespace is within another one') == 2, child.stderr
            child.close()
        (entry,) = (daemon.root / 'pipelines').iterdir()
        assert entry.stat().st_uid == 0
