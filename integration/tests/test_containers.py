"""Clients in containers: other mount, PID, network and user namespaces that see the cache as a bind-mounted folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.harness.daemon import WAYS, Daemon, detach
from integration.harness.holdings import SharedMemory, status
from integration.tests.conftest import ForkChild
from integration.tests.furnish import Volume, furnish
from integration.tests.loaders import LARGE_BYTES
from integration.tests.spaces import Space

INSIDE = Path('/cache/mnt')
OTHERS = ('--pid', '--fork', '--net', '--ipc', '--uts')
KINDS = 'mnt,pid,net,ipc,uts'


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Path]:
    """The mount's parent: a mount of its own whose mounts and unmounts reach its copies, as systemd has it for all."""
    if os.geteuid() != 0:
        pytest.skip('only root can make containers')
    folder = tmp_path / 'cache'
    folder.mkdir()
    for words in (['--bind', str(folder), str(folder)], ['--make-shared', str(folder)]):
        done = subprocess.run(['mount', *words], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f'no bind mount: {done.stderr.strip()}')
    try:
        yield folder
    finally:
        detach(folder)


def contained(parent: Path, *options: str, sockets: Path | None = None) -> Space:
    volumes = [Volume(str(parent), '/cache', 'rslave')]
    if sockets is not None:
        volumes.append(Volume(str(sockets), str(sockets)))
    # slave, not private: what is mounted below the parent later comes in.
    script = furnish(parent.with_name('container'), volumes)
    return Space(['--mount', '--propagation=slave', *OTHERS, *options], script)


@pytest.mark.parametrize('way', WAYS)
def test_fill_and_hit(parent: Path, fork_child: ForkChild, way: str) -> None:
    root = parent / 'mnt'
    with Daemon(root, *WAYS[way]) as daemon:
        if way == 'passthrough' and not status(root)['passthrough']['active']:
            pytest.skip('no passthrough')
        sockets = (root / 'control').resolve().parent if way == 'fd' else None
        with contained(parent, sockets=sockets) as space:
            answers = []
            for _ in range(2):
                child = fork_child(INSIDE, OVERMIND_STRICT='1')
                child.ask(f'enter {space.pid} {KINDS}')
                answers.append(child.ask('load assorted'))
                entry = next((root / 'pipelines').iterdir())
                # In the numbers of the daemon's PID namespace.
                holders = os.getxattr(entry, 'user.overmind.lease_pids').decode().split(',')
                assert all(Path(f'/proc/{pid}').exists() for pid in holders)
                child.close()
        other = fork_child(root, OVERMIND_STRICT='1')
        outside = other.ask('load assorted')
        other.close()
        assert [a['loads'][-1]['outcome'] for a in (*answers, outside)] == ['miss', 'hit', 'hit']
        assert [a['loads'][-1]['access'] for a in (*answers, outside)] == [way] * 3
        assert len({a['digest'] for a in (*answers, outside)}) == 1
        assert status(daemon.root)['fills']['committed'] == 1


@pytest.mark.parametrize('way', ['fd'])  # the others have none
def test_without_the_socket(parent: Path, fork_child: ForkChild, way: str) -> None:
    """A container that has the folder only copies, and says so once."""
    with Daemon(parent / 'mnt', *WAYS[way]), contained(parent) as space:
        child = fork_child(INSIDE)
        child.ask(f'enter {space.pid} {KINDS}')
        assert child.ask('load assorted')['loads'][-1]['access'] == 'read'
        assert child.ask('load numbered 1')['loads'][-1]['access'] == 'read'
        assert child.stderr.count('arenas are copied instead of shared') == 1
        assert child.stderr.count('in a container: --control-dir, docs/containers.md') == 1
        child.close()


@pytest.mark.parametrize('way', WAYS)
def test_user_namespace(parent: Path, fork_child: ForkChild, way: str) -> None:
    """Its root is another uid outside, whose entries it finds again. The daemon's uid is none in there, so that the
    socket is not trusted."""
    for folder in (parent, *list(parent.parents)[:3]):
        folder.chmod(0o755)
    root = parent / 'mnt'
    with Daemon(root, '--allow-other', *WAYS[way]):
        if way == 'passthrough' and not status(root)['passthrough']['active']:
            pytest.skip('no passthrough')
        with Space(['--user', '--mount', '--propagation=slave'], 'true') as space:
            for kind in ('uid_map', 'gid_map'):
                Path(f'/proc/{space.pid}/{kind}').write_text('0 100000 1000')
            answers = []
            for _ in range(2):
                child = fork_child(root)
                child.ask(f'enter {space.pid} user,mnt')
                child.ask('become 0')
                answers.append(child.ask('load assorted')['loads'][-1])
                assert child.stderr.count('neither root nor this user') == (way == 'fd')
                child.close()
        assert [a['outcome'] for a in answers] == ['miss', 'hit']
        assert [a['access'] for a in answers] == ['passthrough' if way == 'passthrough' else 'read'] * 2
        (entry,) = (root / 'pipelines').iterdir()
        assert entry.stat().st_uid == 100000


def test_client_that_runs_on_over_a_restart(parent: Path, fork_child: ForkChild) -> None:
    root = parent / 'mnt'
    daemon = Daemon(root).start()
    try:
        with contained(parent) as space:
            child = fork_child(INSIDE)
            child.ask(f'enter {space.pid} {KINDS}')
            assert child.ask('load assorted')['misses'] == 1
            first = child.ask('load assorted')
            daemon.kill()
            assert child.ask('digest')['digest'] == first['digest']
            without = child.ask('load assorted')
            assert (without['loads'][-1]['outcome'], without['digest']) == ('bypass', first['digest'])
            with Daemon(root):
                assert child.ask('load assorted')['loads'][-1]['outcome'] == 'miss'
                again = child.ask('load assorted')
                assert (again['loads'][-1]['outcome'], again['digest']) == ('hit', first['digest'])
                child.close()
    finally:
        daemon.stop(check=False)


def test_memory_is_charged_to_the_daemon(parent: Path, fork_child: ForkChild) -> None:
    with Daemon(parent / 'mnt') as daemon:
        theirs, ours = SharedMemory(f'overmind-{daemon.pid}-daemon'), SharedMemory(f'overmind-{daemon.pid}-client')
        try:
            theirs.watch(daemon.pid)
            with contained(parent) as space:
                child = fork_child(INSIDE)
                ours.watch(child.pid)
                if not (theirs.is_known and ours.is_known):
                    pytest.skip('no memory cgroup can be made here')
                child.ask(f'enter {space.pid} {KINDS}')
                assert child.ask('load large')['misses'] == 1
                assert theirs.nbytes() >= LARGE_BYTES
                assert ours.nbytes() < LARGE_BYTES // 4
                child.close()
            daemon.stop()
        finally:
            daemon.stop(check=False)
            theirs.close()
            ours.close()
