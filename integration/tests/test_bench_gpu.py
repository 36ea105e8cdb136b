"""The benchmark of copies to a GPU: what can be tried of it without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from integration.bench import gpu
from integration.harness.places import REPOSITORY
from integration.harness.runs import RunError, environment


def moved(seconds: float, weights: str = 'a', private: int = 0, stderr: str = '') -> dict[str, Any]:
    loads = {'loads': [{'outcome': 'hit'}]}
    one = {'seconds': seconds, 'bytes': 4 * 10**9, 'weights': weights, 'private': private, 'stderr': stderr}
    return {**one, 'stats': loads, 'devices': ['cuda']}


def runs(**other: list[dict[str, Any]]) -> gpu.Runs:
    copied = [{'seconds': s, 'bytes': 4 * 10**9, 'stderr': ''} for s in (0.19, 0.2, 0.4)]
    usual = {pin: [moved(0.8), moved(0.5), moved(0.4)] for pin in gpu.PINS}
    return {**usual, 'pageable': copied, 'pinned': copied, **other}


def test_table() -> None:
    lines = gpu.as_table(runs(pool=[moved(0.25, private=64_000_000)])).splitlines()
    pool = next(line for line in lines if 'OVERMIND_PIN=pool' in line)
    assert pool.split()[1:] == ['16.00', '(16.00', '-', '16.00)', '80%', '64', 'MB']
    off = next(line for line in lines if 'OVERMIND_PIN=off' in line)
    assert off.split()[1:6] == ['8.00', '(5.00', '-', '10.00)', '40%']
    assert any(line.split()[:3] == ['one', 'pinned', 'copy'] and '100%' in line for line in lines)


def test_other_weights_are_named() -> None:
    assert gpu.different(runs()) == []
    assert gpu.different(runs(register=[moved(1.0), moved(1.0, weights='b')])) == ['register']


def test_complaints_are_shown_once() -> None:
    said = moved(1.0, stderr='a line\novermind: warning: OVERMIND_PIN=register: refused\n')
    assert gpu.complaints(runs(register=[said, said])) == ['overmind: warning: OVERMIND_PIN=register: refused']


@pytest.mark.parametrize('wrong', [{'stats': {'loads': [{'outcome': 'miss'}]}}, {'devices': ['cpu', 'cuda']}])
def test_what_was_not_cached_or_not_moved_is_no_figure(wrong: dict[str, Any]) -> None:
    gpu.checked('off', 'cuda:0', moved(1.0))
    with pytest.raises(RunError):
        gpu.checked('off', 'cuda:0', {**moved(1.0), **wrong})


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_gpu() -> None:
    line = [sys.executable, '-m', 'integration.bench.gpu']
    done = subprocess.run(line, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (gpu.NO_GPU, '')
    assert done.stdout.startswith('no GPU')
    assert done.stdout.count('\n') == 1


def test_subject_with_the_cpu_in_place_of_a_gpu(checkpoint: Path, tmp_path: Path) -> None:
    env = environment(tmp_path, OVERMIND_STRICT='1', OVERMIND_PIN='pool')
    first = gpu._subject(env, 'cpu', '--pipeline', checkpoint)
    assert {load['outcome'] for load in first['stats']['loads']} == {'miss'}
    with pytest.raises(RunError, match='expected hits'):
        gpu.checked('pool', 'cpu', first)
    second = gpu._subject(env, 'cpu', '--pipeline', checkpoint)
    assert gpu.checked('pool', 'cpu', second)['weights'] == first['weights']
    assert second['seconds'] > 0
    assert second['bytes'] > 1_000_000
    assert gpu._subject(env, 'cpu', '--pageable', '1000000')['bytes'] == 1_000_000
