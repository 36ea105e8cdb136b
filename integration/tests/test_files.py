"""What people and tools read in the mount."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from integration.harness.daemon import WAYS
from integration.tests import loaders
from integration.tests.conftest import Cached, Served

# The test never maps a file of the mount itself: a hanging daemon would hang it for good.
_MAP = """
import hashlib, mmap, sys
with open(sys.argv[1], 'rb') as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    print(hashlib.sha256(mapped).hexdigest())
"""


def manifest(entry: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((entry / 'manifest.json').read_text())
    return facts


def originals(file: Path) -> dict[str, torch.Tensor]:
    with safe_open(str(file), 'pt') as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def output(*line: str | Path) -> str:
    return subprocess.run(list(map(str, line)), check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize(
    ('class_name', 'component', 'file'),
    [
        ('AutoencoderKL', 'model', 'pipeline/vae/diffusion_pytorch_model.safetensors'),
        ('StableDiffusionControlNetPipeline', 'unet', 'pipeline/unet/diffusion_pytorch_model.safetensors'),
        ('StableDiffusionControlNetPipeline', 'text_encoder', 'pipeline/text_encoder/model.safetensors'),
    ],
)
def test_component_is_a_safetensors_file(
    served: Served, checkpoint: Path, class_name: str, component: str, file: str
) -> None:
    cached = originals(served.entry(class_name) / 'tensors' / f'{component}.safetensors')
    for name, tensor in originals(checkpoint / file).items():
        # Libraries rename weights between file and module, by a prefix or without one.
        found = [cached[key] for key in (name, name.removeprefix('text_model.')) if key in cached]
        assert found, name
        assert torch.equal(found[0], tensor), name


def test_pipeline_holds_only_what_was_not_passed_in(served: Served) -> None:
    entry = served.entry('StableDiffusionControlNetPipeline')
    # `model` has what is in no network: the few numbers of the scheduler.
    assert {path.stem for path in (entry / 'tensors').iterdir()} == {'unet', 'text_encoder', 'model'}


def test_plain_tensors_read_back_with_safetensors(cached: Cached) -> None:
    expected = loaders.assorted()
    (arena,) = (cached.entry / 'tensors').iterdir()
    found = originals(arena)
    values = {name.removesuffix("']").removeprefix("['"): value for name, value in found.items()}
    for name in loaders.PLAIN:
        assert values[name].dtype == expected[name].dtype, name
        assert torch.equal(values[name], expected[name]), name


def test_every_storage_is_a_window_of_its_arena(cached: Cached) -> None:
    storages = manifest(cached.entry)['storages']
    files = {int(path.name.split('.')[0]): path for path in (cached.entry / 'storages').iterdir()}
    assert sorted(files) == list(range(len(storages)))
    for number, storage in enumerate(storages):
        assert files[number].stat().st_size == storage['nbytes']
        if not storage['nbytes']:
            continue
        arena = (cached.entry / 'tensors' / storage['arena']).read_bytes()
        expected = arena[storage['offset'] : storage['offset'] + storage['nbytes']]
        digest = hashlib.sha256(expected).hexdigest()
        assert files[number].read_bytes() == expected
        assert output('sha256sum', files[number]).split()[0] == digest
        assert output(sys.executable, '-c', _MAP, files[number]).strip() == digest


def test_storage_with_cat_and_od(cached: Cached) -> None:
    (file,) = (cached.entry / 'storages').glob('*bytes*')
    assert subprocess.run(['cat', file], check=True, capture_output=True).stdout == bytes(range(5))
    assert output('od', '-An', '-tx1', file).split() == ['00', '01', '02', '03', '04']


@pytest.mark.parametrize('served', WAYS, indirect=True, scope='session')  # the daemon makes manifest.json
def test_manifest_is_complete(served: Served, checkpoint: Path) -> None:
    entry = served.entry('StableDiffusionControlNetPipeline')
    facts = manifest(entry)
    assert facts['format'] == 1
    assert facts['id'] == entry.name
    assert facts['class_name'].endswith('.StableDiffusionControlNetPipeline')
    assert facts['structure_nbytes'] == (entry / 'structure.pkl').stat().st_size
    assert {arena['name'] for arena in facts['arenas']} == {path.name for path in (entry / 'tensors').iterdir()}
    for arena in facts['arenas']:
        assert arena['nbytes'] == (entry / 'tensors' / arena['name']).stat().st_size
    tensors = [tensor for storage in facts['storages'] for tensor in storage['tensors']]
    unet = originals(checkpoint / 'pipeline/unet/diffusion_pytorch_model.safetensors')
    assert sum(tensor['dtype'] == 'float16' for tensor in tensors) >= len(unet)
    assert facts['key']
    assert facts['created_ns'] > 0
    assert facts['fill_seconds'] > 0
    sources = {source['path'] for source in facts['sources']}
    assert str(checkpoint / 'pipeline/unet/diffusion_pytorch_model.safetensors') in sources
    assert facts['distributions']['diffusers']


@pytest.mark.parametrize('name', ['manifest', 'manifest.json', 'structure.pkl', 'tensors/*', 'storages/*', 'new'])
def test_entry_is_read_only(cached: Cached, name: str) -> None:
    path = next(cached.entry.glob(name), cached.entry / name)
    with pytest.raises(OSError, match=r'Read-only|Permission|not permitted'):
        path.open('r+b' if path.exists() else 'wb').close()


def test_status_and_metrics(cached: Cached) -> None:
    assert json.loads((cached.root / 'status.json').read_text())
    assert '# TYPE overmind' in (cached.root / 'metrics').read_text()
