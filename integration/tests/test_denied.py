"""System calls that a seccomp profile forbids: a daemon says what it lacks, or does without; so does a loader."""

from __future__ import annotations

import ctypes.util
import subprocess
from pathlib import Path

import pytest

from integration.harness.daemon import DEFAULT_WAY, WAYS, Daemon, mounts_under
from integration.harness.places import REPOSITORY, daemon_binary
from integration.tests.conftest import ForkChild
from integration.tests.seccomp import without

pytestmark = pytest.mark.skipif(ctypes.util.find_library('seccomp') is None, reason='no libseccomp')


@pytest.mark.one_way('nothing is mounted')
@pytest.mark.parametrize(
    ('rule', 'words'),
    [
        ('memfd_create=EPERM', 'seccomp profile may forbid them (docker: --security-opt seccomp=unconfined)'),
        ('memfd_create=ENOSYS', 'seccomp profile may forbid them (docker: --security-opt seccomp=unconfined)'),
        ('mount=EPERM', 'a security module may forbid it; docker: --security-opt apparmor=unconfined'),
    ],
)
def test_daemon_says_what_it_lacks(tmp_path: Path, rule: str, words: str) -> None:
    line = [*without(rule), str(daemon_binary()), 'mount', str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    (said,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert words in said
    assert mounts_under(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('rule', ['openat2=EPERM', 'statx=EPERM', 'pidfd_open=EPERM', 'prlimit64=EPERM'])
def test_daemon_does_without(tmp_path: Path, fork_child: ForkChild, rule: str) -> None:
    """What old profiles do not know they forbid by EPERM, and not by ENOSYS."""
    with Daemon(tmp_path / 'mnt', *WAYS[DEFAULT_WAY], prefix=without(rule)) as daemon:
        answers = []
        for _ in range(2):
            child = fork_child(daemon.root, OVERMIND_STRICT='1')
            answers.append(child.ask('load assorted'))
            child.close()
        assert [answer['loads'][-1]['outcome'] for answer in answers] == ['miss', 'hit']
        assert answers[1]['loads'][-1]['access'] == DEFAULT_WAY


@pytest.mark.parametrize('call', ['recvmsg', 'connect', 'flock', 'setxattr', 'getxattr', 'ftruncate', 'memfd_create'])
def test_loader_gives_its_object(daemon: Daemon, fork_child: ForkChild, call: str) -> None:
    """By another way or without the cache, with one warning at most."""
    truth = fork_child(daemon.root, OVERMIND_STRICT='1').ask('load assorted')['digest']
    child = fork_child(daemon.root)
    child.ask(f'deny {call}=EPERM')
    for name in ('assorted', 'numbered 1'):
        answer = child.ask(f'load {name}')
        assert 'raised' not in answer
        assert name != 'assorted' or answer['digest'] == truth
    assert child.stderr.count('overmind: warning') <= 1, child.stderr
    assert child.finish() == 0
    # Nothing half-done is left, and others go on.
    other = fork_child(daemon.root, OVERMIND_STRICT='1')
    assert other.ask('load assorted')['hits'] == 1
    assert other.ask('load numbered 1')['loads'][-1]['outcome'] in ('hit', 'miss')
    other.close()


def test_socket_that_cannot_be_read(tmp_path: Path, fork_child: ForkChild) -> None:
    with Daemon(tmp_path / 'mnt', *WAYS['fd']) as daemon:
        filler = fork_child(daemon.root, OVERMIND_STRICT='1')
        assert filler.ask('load assorted')['misses'] == 1
        filler.close()
        child = fork_child(daemon.root)
        child.ask('deny recvmsg=EPERM')
        answer = child.ask('load assorted')
        assert (answer['hits'], answer['loads'][-1]['access']) == (1, 'read')
        assert child.stderr.count('arenas are copied instead of shared') == 1
        child.close()
