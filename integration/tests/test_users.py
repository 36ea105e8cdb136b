"""A daemon of root that serves an ordinary user, with the fast paths that need root."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.harness.daemon import WAYS, Daemon
from integration.harness.places import daemon_binary
from integration.harness.runs import environment

USER = 'nobody'

# One process that imports as root, since the interpreter may lie where others cannot look; each load is a fork that
# becomes its user first.
SCRIPT = """
import json, os, sys
import torch
from overmind.api import load, stats
warm, root, checkpoint, turns = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
os.environ['OVERMIND_ROOT'] = warm
load(torch.load, checkpoint)
load(torch.load, checkpoint)
os.environ['OVERMIND_ROOT'] = root
for uid, trust in turns:
    pid = os.fork()
    if pid == 0:
        os.environ['OVERMIND_TRUST'] = trust
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        before = stats()
        value = load(torch.load, checkpoint)
        now = stats()
        print(json.dumps({
            'hits': now.hits - before.hits,
            'misses': now.misses - before.misses,
            'access': now.loads[-1].access,
            'sum': float(value['weight'].sum()),
        }), flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


@pytest.fixture
def uid() -> int:
    if os.geteuid() != 0:
        pytest.skip('only root can serve another user')
    return pwd.getpwnam(USER).pw_uid


def loads_as(turns: list[tuple[int, str]], root: Path, checkpoint: Path, folder: Path) -> list[dict[str, Any]]:
    """What each load gave, by a uid and its OVERMIND_TRUST; the first loads of the process go to a folder."""
    folder.mkdir()
    line = [sys.executable, '-c', SCRIPT, str(folder), str(root), str(checkpoint), json.dumps(turns)]
    done = subprocess.run(
        line, env=environment(root, OVERMIND_STRICT='1'), capture_output=True, text=True, timeout=300, cwd='/'
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(text) for text in done.stdout.splitlines()]


def load_as(uid: int, root: Path, checkpoint: Path, folder: Path) -> dict[str, Any]:
    (answer,) = loads_as([(uid, '')], root, checkpoint, folder)
    return answer


@pytest.mark.parametrize('way', WAYS)
def test_root_serves_a_user_with_the_fast_paths(tmp_path: Path, uid: int, way: str) -> None:
    import torch

    tmp_path.chmod(0o755)
    tmp_path.parent.chmod(0o755)
    tmp_path.parent.parent.chmod(0o755)
    checkpoint = tmp_path / 'x.pt'
    torch.save(torch.nn.Linear(8, 8).state_dict(), checkpoint)
    with Daemon(tmp_path / 'mnt', '--user', USER, *WAYS[way]) as daemon:
        assert os.stat(daemon.root).st_uid == uid
        first = load_as(uid, daemon.root, checkpoint, tmp_path / 'warm-1')
        second = load_as(uid, daemon.root, checkpoint, tmp_path / 'warm-2')
        assert (first['hits'], first['misses']) == (0, 1)
        assert (second['hits'], second['misses'], second['access']) == (1, 0, way)
        assert first['sum'] == second['sum']
        (entry,) = (daemon.root / 'pipelines').iterdir()
        assert entry.stat().st_uid == uid
        other = ['setpriv', '--reuid=65533', '--regid=65533', '--clear-groups', 'ls', str(daemon.root)]
        assert subprocess.run(other, capture_output=True).returncode != 0


@pytest.mark.one_way('nothing is mounted')
def test_user_who_may_not_open_the_device(tmp_path: Path, uid: int) -> None:
    if os.stat('/dev/fuse').st_mode & 0o006:
        pytest.skip('everybody may open /dev/fuse here')
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    helpers, place = tmp_path / 'bin', tmp_path / 'mnt'
    helpers.mkdir()
    place.mkdir()
    os.chown(place, uid, uid)
    (helpers / 'fusermount3').write_text('#!/bin/sh\nexit 1\n')
    binary = shutil.copy(daemon_binary(), helpers)
    for path in helpers.iterdir():
        path.chmod(0o755)
    line = [binary, 'mount', str(place)]
    done = subprocess.run(
        line, user=uid, env={'PATH': str(helpers)}, capture_output=True, text=True, timeout=60, cwd='/'
    )
    assert done.returncode == 1
    assert 'permission denied; as root: chmod 666 /dev/fuse' in done.stderr


@pytest.mark.parametrize('way', WAYS)
def test_users_of_one_mount(tmp_path: Path, uid: int, way: str) -> None:
    """Each has entries of their own, and reads another's only by saying so."""
    import torch

    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    checkpoint = tmp_path / 'x.pt'
    torch.save(torch.nn.Linear(8, 8).state_dict(), checkpoint)
    first, second, third = uid, uid - 1, uid - 2
    turns = [(first, ''), (second, ''), (second, ''), (third, str(first)), (0, '')]
    with Daemon(tmp_path / 'mnt', '--allow-other', '--share', *WAYS[way]) as daemon:
        answers = loads_as(turns, daemon.root, checkpoint, tmp_path / 'warm')
        assert [(a['hits'], a['misses']) for a in answers] == [(0, 1), (0, 1), (1, 0), (1, 0), (0, 1)]
        assert len({answer['sum'] for answer in answers}) == 1
        owners = {
            entry.name.rpartition('-')[2].partition('.')[2]: entry.stat().st_uid for entry in entries(daemon.root)
        }
        assert owners == {f'u{first}': first, f'u{second}': second, '': 0}


def test_users_who_trust_without_share(tmp_path: Path, uid: int) -> None:
    """What cannot be read is no reason to load without the cache for ever."""
    import torch

    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    checkpoint = tmp_path / 'x.pt'
    torch.save(torch.nn.Linear(8, 8).state_dict(), checkpoint)
    first, second = uid, uid - 1
    turns = [(first, ''), (second, str(first)), (second, str(first))]
    with Daemon(tmp_path / 'mnt', '--allow-other') as daemon:
        answers = loads_as(turns, daemon.root, checkpoint, tmp_path / 'warm')
        assert [(a['hits'], a['misses']) for a in answers] == [(0, 1), (0, 1), (1, 0)]
        assert {entry.stat().st_uid for entry in entries(daemon.root)} == {first, second}


def entries(root: Path) -> list[Path]:
    return list((root / 'pipelines').iterdir())
