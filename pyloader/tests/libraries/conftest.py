"""Tiny models that the libraries saved, patched loaders."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator

import pytest
import torch
from models import BERT

from overmind.api import monkey_patch_all, unpatch_all


@pytest.fixture(scope='module')
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """One folder a model, each named for what is in it."""
    import transformers

    folder = tmp_path_factory.mktemp('saved')
    torch.manual_seed(0)
    config = transformers.BertConfig(**BERT)
    transformers.BertModel(config).save_pretrained(folder / 'bert')
    transformers.BertModel(config).save_pretrained(folder / 'bert-2')
    transformers.BertForSequenceClassification(config).save_pretrained(folder / 'with-head')
    vit = {**BERT, 'image_size': 8, 'patch_size': 4}
    transformers.ViTForImageClassification(transformers.ViTConfig(**vit)).save_pretrained(folder / 'vit')
    return folder


@pytest.fixture
def bert(saved: pathlib.Path, tmp_path: pathlib.Path) -> str:
    """A copy for this test alone."""
    return str(shutil.copytree(saved / 'bert', tmp_path / 'bert'))


@pytest.fixture
def unet(tmp_path: pathlib.Path) -> str:
    diffusers = pytest.importorskip('diffusers')
    torch.manual_seed(0)
    model = diffusers.UNet2DModel(
        sample_size=8, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4, attention_head_dim=4,
        down_block_types=('DownBlock2D', 'AttnDownBlock2D'), up_block_types=('AttnUpBlock2D', 'UpBlock2D'),
    )  # fmt: skip
    model.save_pretrained(tmp_path / 'unet')
    return str(tmp_path / 'unet')


@pytest.fixture(autouse=True)
def _patched(root: pathlib.Path) -> Iterator[None]:
    monkey_patch_all()
    yield
    unpatch_all()


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('OVERMIND_STRICT')
