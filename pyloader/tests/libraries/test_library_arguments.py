"""Tiny models that the libraries saved, loaded by them, compared with a load without the cache: chance, references."""

from __future__ import annotations

import pathlib
from typing import Any

import library_loaders as loaders
import pytest
import torch
from models import IMAGE, TOKENS, equal, outcomes, output, plain, reason

from overmind.api import load, stats

transformers = pytest.importorskip('transformers')


def test_a_new_head_is_made_up_anew_by_every_load(bert: str, lenient: None) -> None:
    cls = transformers.BertForSequenceClassification
    torch.manual_seed(5)
    expected = plain(cls.from_pretrained, bert)
    state = torch.get_rng_state()
    torch.manual_seed(5)
    found = cls.from_pretrained(bert)
    assert torch.equal(torch.get_rng_state(), state)
    assert outcomes() == ['bypass']
    assert 'chance' in reason()
    equal(found, expected)
    other = cls.from_pretrained(bert)
    assert outcomes() == ['bypass'] * 2
    assert not torch.equal(other.classifier.weight, found.classifier.weight)


@pytest.mark.parametrize(
    ('cls', 'name', 'given'),
    [('ViTForImageClassification', 'vit', IMAGE), ('BertForSequenceClassification', 'with-head', TOKENS)],
)
def test_a_head_of_the_checkpoint_is_cached(saved: pathlib.Path, cls: str, name: str, given: torch.Tensor) -> None:
    call = getattr(transformers, cls).from_pretrained
    expected = plain(call, str(saved / name))
    for _ in range(2):
        equal(call(str(saved / name)), expected, given)
    assert outcomes() == ['miss', 'hit']


# ---- references


def test_an_adapter_changes_the_cached_base(bert: str, tmp_path: pathlib.Path, lenient: None) -> None:
    peft = pytest.importorskip('peft')
    config = peft.LoraConfig(r=2, target_modules=['query', 'value'], init_lora_weights=False)
    peft.get_peft_model(plain(loaders.bert, bert), config).save_pretrained(tmp_path / 'adapter')
    adapter = str(tmp_path / 'adapter')
    base = plain(loaders.bert, bert)
    expected = plain(peft.PeftModel.from_pretrained, base, adapter)
    for outcome in ('miss', 'hit'):
        ours = loaders.bert(bert)
        before = output(ours)
        found = peft.PeftModel.from_pretrained(ours, adapter)
        assert outcomes()[-2:] == [outcome, 'bypass']
        assert 'changed an object that was passed to it' in reason()
        assert found.base_model.model is ours
        equal(found, expected)
        equal(ours, base)
        assert not torch.equal(output(ours), before)
    # What was put into the object of this process is in no later one.
    equal(loaders.bert(bert), plain(loaders.bert, bert))


@pytest.mark.parametrize('kind', [dict, list])
def test_containers_of_cached_models(saved: pathlib.Path, kind: type) -> None:
    names = ['bert', 'bert-2']
    for _ in range(2):
        models = [loaders.bert(str(saved / name)) for name in names]
        given = dict(zip(names, models, strict=True)) if kind is dict else list(models)
        found = load(loaders.hold, given)
        assert type(found['models']) is kind
        assert torch.equal(found['own'], torch.arange(3))
        held = list(found['models'].values()) if kind is dict else found['models']
        assert [a is b for a, b in zip(held, models, strict=True)] == [True, True]
        for model, name in zip(held, names, strict=True):
            equal(model, plain(loaders.bert, str(saved / name)))
    assert outcomes() == ['miss', 'miss', 'miss', 'hit', 'hit', 'hit']
    # The same models in other places are another call.
    swapped = dict(zip(names, models[::-1], strict=True)) if kind is dict else models[::-1]
    found = load(loaders.hold, swapped)['models']
    assert (found['bert'] if kind is dict else found[0]) is models[1]
    assert outcomes()[-1] == 'miss'


def test_results_that_hold_a_part_of_an_argument(bert: str) -> None:
    for _ in range(2):
        model = loaders.bert(bert)
        layer = load(loaders.submodule, model)['layer']
        assert layer is model.encoder.layer[0]
        weight, own = load(loaders.parameter, model)
        assert weight is model.embeddings.word_embeddings.weight
        assert torch.equal(own, torch.arange(3))
    assert outcomes() == ['miss'] * 3 + ['hit'] * 3


@pytest.mark.parametrize('loader', [loaders.storage, loaders.view])
def test_results_that_hold_the_memory_of_an_argument(bert: str, loader: Any, lenient: None) -> None:
    model = loaders.bert(bert)
    weight = model.embeddings.word_embeddings.weight
    for _ in range(2):
        (found,) = load(loader, model)
        start = weight.data_ptr() + (0 if loader is loaders.storage else weight[0].nbytes)
        assert found.data_ptr() == start
        assert outcomes()[-1] == 'bypass'
        assert 'memory of an argument' in reason()


def test_an_argument_that_has_another_dtype_by_now(bert: str) -> None:
    model = loaders.bert(bert)
    load(loaders.parameter, model)
    model.half()
    for loader in (loaders.parameter, loaders.hold, loaders.hold):
        found = load(loader, model)
        if loader is loaders.parameter:
            assert found[0] is model.embeddings.word_embeddings.weight
            assert found[0].dtype == torch.float16
        else:
            assert found['models'] is model
    fresh = loaders.bert(bert)
    assert load(loaders.parameter, fresh)[0].dtype == torch.float32
    assert load(loaders.parameter, fresh)[0] is fresh.embeddings.word_embeddings.weight
    assert output(model).dtype == torch.float16


@pytest.mark.parametrize(
    'change',
    [lambda m: m.half(), lambda m: m.requires_grad_(False), lambda m: m.train(), lambda m: m.pooler.to('meta')],
    ids=['half', 'frozen', 'train', 'meta'],
)
def test_a_loader_that_follows_what_its_argument_is_like(bert: str, change: Any) -> None:
    model = loaders.bert(bert)
    for outcome in ('miss', 'hit'):
        same(load(loaders.head, model), loaders.head(model))
        assert outcomes()[-1] == outcome, stats()
    change(model)
    for outcome in ('miss', 'hit'):
        same(load(loaders.head, model), loaders.head(model))
        assert outcomes()[-1] == outcome, stats()
    fresh = loaders.bert(bert)
    same(load(loaders.head, fresh), loaders.head(fresh))
    assert outcomes()[-1] == 'hit'


def same(found: Any, expected: Any) -> None:
    a, b = found.pop('head'), expected.pop('head')
    assert (a.dtype, a.requires_grad, a.tolist()) == (b.dtype, b.requires_grad, b.tolist())
    assert found['model'] is expected['model']
    assert found == expected
