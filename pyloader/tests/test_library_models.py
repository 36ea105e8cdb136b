"""What the libraries really do: tiny models that they saved, loaded by them, compared with a load without the cache."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import library_loaders as loaders
import pytest
import torch

from overmind import nesting
from overmind.api import load, monkey_patch_all, stats, unpatch_all
from overmind.key import versions

transformers = pytest.importorskip('transformers')

BERT = {
    'vocab_size': 9, 'hidden_size': 8, 'num_hidden_layers': 2, 'num_attention_heads': 2, 'intermediate_size': 8,
    'max_position_embeddings': 8,
}  # fmt: skip
TOKENS = torch.arange(5)[None]
IMAGE = torch.linspace(-1, 1, 3 * 8 * 8).reshape(1, 3, 8, 8)

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


@pytest.fixture(scope='module')
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """One folder a model, each named for what is in it."""
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


def plain(fn: Any, *args: Any, **kwargs: Any) -> Any:
    with nesting.uncached():
        return fn(*args, **kwargs)


def outcomes() -> list[str]:
    return [one.outcome for one in stats().loads]


def reason() -> str:
    return stats().loads[-1].reason


def hooks(module: torch.nn.Module) -> list[Any]:
    found: list[Any] = [
        getattr(hook, '__qualname__', type(hook).__qualname__)
        for kind in ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_state_dict_hooks')
        for hook in getattr(module, kind).values()
    ]
    found.append(type(getattr(module, '_hf_hook', None)).__qualname__)
    found += list(getattr(getattr(module, '_diffusers_hook', None), 'hooks', ()))
    return found


def picture(model: torch.nn.Module) -> list[Any]:
    """Everything that two equal models have in common, weights by their bytes."""
    found: list[Any] = [
        (name, f'{type(m).__module__}.{type(m).__qualname__}', m.training, hooks(m))
        for name, m in model.named_modules()
    ]
    for name, t in (*model.named_parameters(), *model.named_buffers()):
        on_meta = t.device.type == 'meta'
        data = None if on_meta else t.detach().contiguous().view(-1).view(torch.uint8).tolist()
        found.append((name, type(t).__qualname__, t.dtype, tuple(t.shape), t.stride(), t.requires_grad, t.device, data))
    return found


def output(model: Any, *inputs: Any) -> torch.Tensor:
    torch.manual_seed(3)  # for dropout
    found = model(*(inputs or (TOKENS,)))
    out = found if isinstance(found, torch.Tensor) else found[0]
    return out.detach().clone()


def equal(a: Any, b: Any, *inputs: Any) -> None:
    assert a is not b
    assert picture(a) == picture(b)
    assert torch.equal(output(a, *inputs), output(b, *inputs))


# ---- chance


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


# ---- keys


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


# ---- objects


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
