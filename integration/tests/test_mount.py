"""Mounting and unmounting, and what cannot be mounted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from integration.harness.daemon import DEFAULT_WAY, WAYS, Daemon, DaemonError, command, mounts_under
from integration.harness.holdings import wait_until
from integration.tests.conftest import ForkChild, daemons_under

REFUSED = pytest.mark.one_way('nothing is mounted')


def refused(*arguments: str) -> str:
    """A command that must fail with one clear line; what it wrote."""
    done = command(*arguments, check=False)
    text = (done.stderr + done.stdout).strip()
    assert done.returncode != 0, text
    assert 'panic' not in text
    assert 'goroutine' not in text
    return text


@REFUSED
def test_missing_mount_point(tmp_path: Path) -> None:
    assert str(tmp_path / 'missing') in refused('mount', str(tmp_path / 'missing'))


@REFUSED
def test_mount_point_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    assert 'folder' in refused('mount', str(tmp_path / 'file'))


@REFUSED
def test_mount_point_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / 'mine').write_text('')
    assert 'empty' in refused('mount', str(tmp_path))
    assert (tmp_path / 'mine').exists()


def test_mount_point_that_is_in_use(daemon: Daemon) -> None:
    assert 'mount' in refused('mount', str(daemon.root))
    assert len(mounts_under(daemon.root)) == 1
    assert (daemon.root / 'status.json').exists()


@REFUSED
def test_no_mount_point() -> None:
    refused('mount')


@REFUSED
def test_unmounting_what_is_not_mounted(tmp_path: Path) -> None:
    refused('umount', str(tmp_path))


def test_background_daemon(tmp_path: Path) -> None:
    root, log = tmp_path / 'mnt', tmp_path / 'log'
    root.mkdir()
    command('mount', '--background', '--log-file', str(log), *WAYS[DEFAULT_WAY], str(root))
    assert (root / 'status.json').exists()
    assert daemons_under(tmp_path)
    command('umount', str(root))
    wait_until(lambda: not daemons_under(tmp_path), 'the daemon goes on')
    assert mounts_under(root) == []


@pytest.mark.parametrize('number', [15, 2])
def test_signal_unmounts_also_with_a_client(daemon: Daemon, fork_child: ForkChild, number: int) -> None:
    child = fork_child(daemon.root)
    digest = child.ask('load assorted')['digest']
    os.kill(daemon.pid, number)
    wait_until(lambda: not daemon.alive(), 'the daemon goes on')
    assert mounts_under(daemon.root) == []
    assert child.ask('digest')['digest'] == digest


def test_mount_again_after_sigkill(daemon: Daemon, fork_child: ForkChild) -> None:
    child = fork_child(daemon.root)
    digest = child.ask('load assorted')['digest']
    daemon.kill()
    assert mounts_under(daemon.root)
    with Daemon(daemon.root, log=daemon.log):
        assert len(mounts_under(daemon.root)) == 1
        child = fork_child(daemon.root, OVERMIND_STRICT='1')
        answer = child.ask('load assorted')
        assert (answer['misses'], answer['digest']) == (1, digest)
        # Before the daemon, which serves open files to the last.
        child.close()


@REFUSED
def test_commands_without_a_mount(tmp_path: Path) -> None:
    for name in ('ls', 'status'):
        assert refused(name, '--root', str(tmp_path))


def test_list_show_evict(daemon: Daemon, fork_child: ForkChild) -> None:
    fork_child(daemon.root).ask('load assorted')
    (entry,) = (daemon.root / 'pipelines').iterdir()
    assert entry.name in command('ls', root=daemon.root).stdout
    assert entry.name in command('show', entry.name, root=daemon.root).stdout
    command('evict', entry.name, root=daemon.root)
    assert not entry.exists()
    with pytest.raises(DaemonError, match=r'.'):
        command('show', entry.name, root=daemon.root)
