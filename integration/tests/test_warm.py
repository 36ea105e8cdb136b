"""``overmind run`` with the real libraries and the cache."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.harness.daemon import DEFAULT_WAY, WAYS, Daemon
from integration.harness.places import PROGRAM
from integration.harness.runs import environment
from integration.tests.conftest import serving

WARM = [sys.executable, '-m', 'overmind.run']
SECONDS = 300


@pytest.fixture
def env(daemon: Daemon, tmp_path: Path) -> Iterator[dict[str, str]]:
    own = {'XDG_RUNTIME_DIR': str(tmp_path / 'run'), 'XDG_STATE_HOME': str(tmp_path / 'state')}
    (tmp_path / 'run').mkdir(mode=0o700)
    variables = environment(daemon.root, OVERMIND_STRICT='1', **own)
    yield variables
    subprocess.run([*WARM, '--stop'], env=variables, check=True, capture_output=True)


def imported(env: dict[str, str]) -> int:
    """How many modules the only warm parent has."""
    listed = subprocess.run([*WARM, '--list'], env=env, check=True, capture_output=True, text=True).stdout
    [row] = listed.splitlines()[1:]
    word = row.split()[3]
    return int(word) if word.isdecimal() else 0


@pytest.mark.one_way('it goes through the ways itself, with one warm parent')
def test_a_warm_program_gets_the_same_pipeline_from_the_cache(
    env: dict[str, str], tmp_path: Path, checkpoint: Path, plain: dict[str, Any]
) -> None:
    line = [*WARM, str(PROGRAM), str(checkpoint), '--touch', '--weights', '--forward', '--cache']

    def run(root: Path | None = None) -> dict[str, Any]:
        variables = {**env, 'OVERMIND_ROOT': str(root)} if root else env
        done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        assert 'as plain python' not in done.stderr
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert (result['weights'], result['outputs']) == (plain['weights'], plain['outputs'])
        return result

    first = run()
    assert {load['outcome'] for load in first['stats']['loads']} == {'miss'}
    until = time.monotonic() + SECONDS
    while imported(env) < 1000:
        assert time.monotonic() < until, 'the libraries are not imported in advance'
        time.sleep(0.1)
    second = run()
    assert {load['outcome'] for load in second['stats']['loads']} == {'hit'}
    assert second['seconds']['import'] < first['seconds']['import'] / 10
    for way in WAYS.keys() - {DEFAULT_WAY}:
        with serving(tmp_path / way, way) as other:
            for outcome in ('miss', 'hit'):
                loads = run(other.root)['stats']['loads']
                assert {(load['outcome'], load['access']) for load in loads} == {(outcome, way)}
