"""Two fine-tunes of one model, whose VAE and text encoder are the same, take the memory of those once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.harness.daemon import Daemon
from integration.harness.holdings import status, wait_until
from integration.harness.runs import environment
from integration.tests.conftest import every_way


def _load(*arguments: str | Path, env: dict[str, str]) -> dict[str, Any]:
    line = [sys.executable, '-m', 'integration.tests.finetunes', *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _memfd_bytes(pid: int) -> int:
    """What the memory that a process has open as files takes, each once."""
    files = [f for f in Path(f'/proc/{pid}/fd').iterdir() if os.readlink(f).startswith('/memfd:overmind:')]
    return sum({f.stat().st_ino: f.stat().st_size for f in files}.values())


@pytest.fixture(scope='session')
def finetunes(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The pipeline, and a copy of it in which one weight of the UNet is another."""
    from safetensors.torch import load_file, save_file

    other = tmp_path_factory.mktemp('finetune') / 'pipeline'
    shutil.copytree(checkpoint / 'pipeline', other)
    path = other / 'unet' / 'diffusion_pytorch_model.safetensors'
    weights = load_file(path)
    weights['conv_out.bias'] += 0.5
    save_file(weights, path, {'format': 'pt'})
    return [checkpoint / 'pipeline', other]


@pytest.fixture(scope='session')
def uncached(finetunes: list[Path]) -> dict[str, Any]:
    return _load(*finetunes, env=environment())


@every_way
def test_equal_components_are_stored_once(
    daemon: Daemon, way: str, finetunes: list[Path], uncached: dict[str, Any]
) -> None:
    env = environment(daemon.root, OVERMIND_STRICT='1')
    filled, hit = [_load('--cache', *finetunes, env=env) for _ in range(2)]
    for result in (filled, hit):
        assert result['weights'] == uncached['weights']
        assert result['outputs'] == uncached['outputs']
        # The process that filled maps the shared memory as well.
        if way == 'fd':
            assert result['memfds'] == {'vae': 1, 'text_encoder': 1, 'model': 1, 'unet': 2}
    assert uncached['outputs'][0]['unet'] != uncached['outputs'][1]['unet']
    assert (filled['stats']['misses'], hit['stats']['hits']) == (2, 2)

    entries = json.loads((daemon.root / 'entries.json').read_text())
    shared = sum(a['nbytes'] for a in entries[0]['arenas'] if a['name'] != 'unet.safetensors')
    assert [load['shared'] for load in filled['stats']['loads']] == [0, shared]
    held = status(daemon.root)['bytes']
    assert held['shared'] == shared
    assert held['cached'] == sum(e['bytes'] for e in entries) - shared == _memfd_bytes(status(daemon.root)['pid'])

    (daemon.root / 'pipelines' / entries[0]['id']).rmdir()
    wait_until(lambda: status(daemon.root)['bytes']['draining'] == 0, 'draining')
    held = status(daemon.root)['bytes']
    assert (held['shared'], held['cached']) == (0, entries[1]['bytes'])
