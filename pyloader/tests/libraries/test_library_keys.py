"""Tiny models that the libraries saved, loaded by them, compared with a load without the cache: keys."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from models import BERT, equal, outcomes, output, plain, reason

from overmind.api import stats
from overmind.key import versions

transformers = pytest.importorskip('transformers')


MODELING = """
import torch
from transformers import PretrainedConfig, PreTrainedModel

class TinyConfig(PretrainedConfig):
    model_type = 'tiny-of-the-tests'

class TinyModel(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.inner = torch.nn.Linear(2, 2)
        self.post_init()

    def forward(self, x):
        return self.inner(x) * FACTOR
"""


def remote(folder: pathlib.Path, factor: int) -> None:
    (folder / 'modeling_tiny.py').write_text(MODELING.replace('FACTOR', str(factor)))


@pytest.fixture
def remote_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    dynamic = pytest.importorskip('transformers.dynamic_module_utils')
    monkeypatch.setattr(dynamic, 'HF_MODULES_CACHE', str(tmp_path / 'modules'))
    monkeypatch.setattr(sys, 'path', list(sys.path))
    folder = tmp_path / 'tiny'
    folder.mkdir()
    remote(folder, 2)
    classes = {'AutoConfig': 'modeling_tiny.TinyConfig', 'AutoModel': 'modeling_tiny.TinyModel'}
    config = {'model_type': 'tiny-of-the-tests', 'auto_map': classes}
    (folder / 'config.json').write_text(json.dumps(config))
    from safetensors.torch import save_file

    weights = {'inner.weight': torch.arange(4.0).reshape(2, 2), 'inner.bias': torch.ones(2)}
    save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})
    yield folder
    for name in [n for n in sys.modules if n.partition('.')[0] == 'transformers_modules']:
        del sys.modules[name]


def test_changed_remote_code(remote_folder: pathlib.Path) -> None:
    x = torch.ones(2)

    def get() -> Any:
        model = transformers.AutoModel.from_pretrained(str(remote_folder), trust_remote_code=True)
        return output(model, x).tolist()

    assert [get(), get()] == [[4.0, 12.0]] * 2
    remote(remote_folder, 3)
    assert [get(), get()] == [[6.0, 18.0]] * 2
    assert outcomes() == ['miss', 'hit', 'miss', 'hit']
    assert 'modeling_tiny.py: modified' in stats().loads[2].reason


def test_the_default_dtype(bert: str) -> None:
    call = transformers.BertModel.from_pretrained
    call(bert)
    call(bert)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found, expected = call(bert), plain(call, bert)
        equal(found, expected)
        call(bert)
    finally:
        torch.set_default_dtype(before)
    call(bert)
    assert outcomes() == ['miss', 'hit', 'miss', 'hit', 'hit']


def test_a_relative_path_from_elsewhere(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = transformers.BertModel.from_pretrained
    expected = plain(call, bert)
    call(bert)
    folder = pathlib.Path(bert).parent
    for cwd, path in ((folder, 'bert'), (folder / 'root', '../bert'), (folder, './bert/')):
        monkeypatch.chdir(cwd)
        equal(call(path), expected)
    assert outcomes() == ['miss', 'hit', 'hit', 'hit']
    assert len({one.id for one in stats().loads}) == 1


def test_arguments_that_choose_files(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A folder with one model at its top, another as a variant, and a third below it."""
    call = transformers.BertModel.from_pretrained
    folder = tmp_path / 'several'
    shutil.copytree(saved / 'bert', folder)
    shutil.copy(saved / 'bert-2' / 'model.safetensors', folder / 'model.other.safetensors')
    torch.manual_seed(9)
    transformers.BertModel(transformers.BertConfig(**BERT)).save_pretrained(folder / 'below')
    seen = []
    for given in ({}, {'variant': 'other'}, {'subfolder': 'below'}, {'revision': 'v1'}):
        expected = plain(call, str(folder), **given)
        for outcome in ('miss', 'hit'):
            equal(call(str(folder), **given), expected)
            assert outcomes()[-1] == outcome
        seen.append(output(expected))
    assert not any(torch.equal(seen[i], seen[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert len({one.id for one in stats().loads}) == 4


@pytest.mark.parametrize(
    ('before', 'after', 'said'),
    [
        ({}, {'transformers': '0.1'}, 'now 0.1'),
        ({'bitsandbytes': ''}, {'bitsandbytes': '0.1'}, 'absent when it was loaded, now 0.1'),
        ({}, {'safetensors': ''}, 'now absent'),
    ],
)
def test_another_environment(
    bert: str, monkeypatch: pytest.MonkeyPatch, before: dict[str, str], after: dict[str, str], said: str
) -> None:
    real = versions._scan
    report: dict[str, str] = {}

    def scan(stamps: Any) -> Any:
        found, places = real(stamps)
        gone = [name for name, version in report.items() if not version]
        return (
            {k: v for k, v in {**found, **report}.items() if v},
            {k: v for k, v in places.items() if k not in gone},
        )

    monkeypatch.setattr(versions, '_scan', scan)
    report.update(before)
    call = transformers.BertModel.from_pretrained
    expected = plain(call, bert)
    call(bert)
    call(bert)
    report.clear()
    report.update(after)
    equal(call(bert), expected)
    assert outcomes() == ['miss', 'hit', 'miss']
    assert next(iter(after)) in reason()
    assert said in reason()
    call(bert)
    assert outcomes()[-1] == 'hit'
