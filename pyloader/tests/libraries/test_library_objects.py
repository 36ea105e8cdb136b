"""Tiny models that the libraries saved, loaded by them, compared with a load without the cache: objects."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import library_loaders as loaders
import pytest
import torch
from models import TOKENS, equal, hooks, outcomes, output, plain, reason

from overmind.api import load, stats

transformers = pytest.importorskip('transformers')


def test_disk_offload_of_the_checkpoint_itself(bert: str, tmp_path: pathlib.Path, lenient: None) -> None:
    pytest.importorskip('accelerate')
    scratch = tmp_path / 'scratch'
    given = {
        'device_map': {'embeddings': 'cpu', 'encoder': 'disk', 'pooler': 'cpu'},
        'offload_folder': str(scratch),
    }
    call = transformers.BertModel.from_pretrained
    expected = plain(call, bert, **given)
    for _ in range(2):
        equal(call(bert, **given), expected)
    # The weights are read from the checkpoint, so that the other folder may go.
    shutil.rmtree(scratch)
    assert torch.equal(output(call(bert, **given)), output(plain(loaders.bert, bert).eval()))


def test_disk_offload_of_weights_that_are_converted(bert: str, tmp_path: pathlib.Path, lenient: None) -> None:
    """From an older format they are written into the folder: for another model, too."""
    pytest.importorskip('accelerate')
    folder, call = pathlib.Path(bert), transformers.BertModel.from_pretrained
    model = plain(loaders.bert, bert).eval()
    (folder / 'model.safetensors').unlink()
    given = {'device_map': {'': 'disk'}, 'offload_folder': str(tmp_path / 'scratch'), 'use_safetensors': False}
    for factor in (1.0, 1.0, 2.0, 1.0):
        state = {name: t * factor for name, t in model.state_dict().items()}
        torch.save(state, folder / 'pytorch_model.bin')
        expected = output(plain(call, bert, **given))
        assert torch.equal(output(call(bert, **given)), expected)
    assert outcomes() == ['bypass'] * 4
    assert 'weights that the loader wrote' in reason()


@pytest.mark.parametrize('exists', [True, False])
def test_disk_offload_into_a_folder(saved: pathlib.Path, tmp_path: pathlib.Path, lenient: None, exists: bool) -> None:
    """Two models take turns in one folder: whoever came last has written what is there."""
    pytest.importorskip('accelerate')
    scratch = tmp_path / 'scratch'
    folders = [str(saved / name) for name in ('bert', 'bert-2')]
    expected = [plain(loaders.on_disk, folder, str(tmp_path / f'of-{i}')) for i, folder in enumerate(folders)]
    assert not torch.equal(*map(output, expected))
    for i in (0, 0, 1, 0, 1):
        # accelerate writes nothing where it finds an index.
        shutil.rmtree(scratch, ignore_errors=True)
        if exists:
            scratch.mkdir()
        equal(load(loaders.on_disk, folders[i], str(scratch)), expected[i])
    assert set(outcomes()) == {'bypass'}
    assert 'weights that the loader wrote' in reason()


SAMPLE = (torch.linspace(-1, 1, 3 * 8 * 8).reshape(1, 3, 8, 8), 1)


def test_layerwise_casting(unet: str) -> None:
    expected = plain(loaders.layerwise, unet)
    for outcome in ('miss', 'hit'):
        found = load(loaders.layerwise, unet)
        assert outcomes()[-1] == outcome, stats()
        assert any(p.dtype == torch.float8_e4m3fn for p in found.parameters())
        assert any('layerwise_casting' in hooks(m) for m in found.modules())
        equal(found, expected, *SAMPLE)


def grouped(folder: str, *scratch: str) -> Any:
    try:
        return plain(loaders.grouped, folder, *scratch)
    except (ValueError, RuntimeError, AttributeError) as e:
        pytest.skip(f'this diffusers offloads groups to an accelerator only: {e}')


def test_group_offload(unet: str) -> None:
    expected = grouped(unet)
    for outcome in ('miss', 'hit'):
        found = load(loaders.grouped, unet)
        assert outcomes()[-1] == outcome, stats()
        assert any('group_offloading' in hooks(m) for m in found.modules())
        equal(found, expected, *SAMPLE)


def test_group_offload_to_disk(unet: str, tmp_path: pathlib.Path, lenient: None) -> None:
    want = output(grouped(unet, str(tmp_path / 'other')), *SAMPLE)
    for scratch in (tmp_path / 'there', tmp_path / 'new'):
        for _ in range(3):
            assert torch.equal(output(load(loaders.grouped, unet, str(scratch)), *SAMPLE), want)
            shutil.rmtree(scratch, ignore_errors=True)
    # Its forward reads the folder with safetensors' load_file: no loads of the program's.
    assert outcomes() == ['bypass'] * 6
    assert all('weights that the loader wrote' in one.reason for one in stats().loads)


def test_training_with_gradient_checkpointing(bert: str) -> None:
    expected = plain(loaders.training, bert)
    for outcome in ('miss', 'hit'):
        found = load(loaders.training, bert)
        assert outcomes()[-1] == outcome, stats()
        assert found.is_gradient_checkpointing
        equal(found, expected)
        gradients = []
        for model in (found, expected):
            model.zero_grad()
            torch.manual_seed(3)
            model(TOKENS).last_hidden_state.sum().backward()
            gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        assert gradients[0].keys() == gradients[1].keys()
        assert gradients[0]
        assert all(torch.equal(gradients[0][n], gradients[1][n]) for n in gradients[0])
        expected.zero_grad()


def test_inference_mode(bert: str, lenient: None) -> None:
    call = transformers.BertModel.from_pretrained

    def facts(model: Any) -> list[Any]:
        return [(n, t.is_inference(), t.requires_grad) for n, t in (*model.named_parameters(), *model.named_buffers())]

    plainly = facts(plain(call, bert))
    with torch.inference_mode():
        expected = plain(call, bert)
        for _ in range(2):
            found = call(bert)
            equal(found, expected)
            assert facts(found) == facts(expected)
    assert outcomes() == ['bypass'] * 2
    assert 'inference mode' in reason()
    # Outside, nothing of it is left, and the other way round.
    for _ in range(2):
        found = call(bert)
        assert facts(found) == plainly
        found(TOKENS).last_hidden_state.sum().backward()
    with torch.inference_mode():
        assert facts(call(bert)) == facts(expected)
    assert outcomes()[2:] == ['miss', 'hit', 'bypass']
