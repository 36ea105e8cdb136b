"""Calls that mean the same have one key, others have another, and what went in can be read."""

import collections
import functools
import os
import re
import types

import pytest
import torch

from overmind.errors import Unkeyable
from overmind.key.canonical import no_reference
from overmind.key.lookup import lookup

COMMIT, OTHER = 'a' * 40, 'b' * 40


def module_of_a_library(monkeypatch, tmp_path):
    """A class with from_pretrained, as if installed in site-packages."""
    folder = tmp_path / 'site-packages'
    folder.mkdir()
    (folder / 'somelib.py').write_text(
        'class Model:\n'
        '    @classmethod\n'
        '    def from_pretrained(cls, name, *args, dtype=None, **kwargs): ...\n'
        'class Other(Model): ...\n'
        'def load(f, /, map_location=None, *, mmap=False, **kw): ...\n'
    )
    monkeypatch.syspath_prepend(str(folder))
    import somelib

    return somelib


@pytest.fixture
def lib(monkeypatch, tmp_path):
    yield module_of_a_library(monkeypatch, tmp_path)
    import sys

    del sys.modules['somelib']


def key(fn, *args, **kwargs):
    return lookup(fn, args, kwargs, no_reference)


def test_writing_does_not_matter(lib):
    same = [
        key(lib.Model.from_pretrained, 'x', dtype=1, a=2, b=3),
        key(lib.Model.from_pretrained, b=3, a=2, dtype=1, name='x'),
        key(functools.partial(lib.Model.from_pretrained, 'x', a=2), b=3, dtype=1),
        key(lib.Model.from_pretrained, 'x', dtype=1, a=2, b=3, token='secret', proxies={}),
    ]  # fmt: skip
    assert len({k.digest for k in same}) == 1
    assert all('secret' not in str(k) for k in same)


def test_differences_matter(lib):
    made = lib.Model.from_pretrained
    keys = [
        key(made, 'x'), key(made, 'y'), key(made, 'x', 'y'), key(made, 'x', dtype=None), key(made, 'x', dtype='y'),
        key(lib.Other.from_pretrained, 'x'), key(made, 'x', force_download=True), key(lib.load, 'x'),
        key(lib.load, 'x', map_location='cpu'), key(lib.load, 'x', f='y'), key(lib.load, 'x', mmap=True),
    ]  # fmt: skip
    assert len({k.digest for k in keys}) == len(keys)


def test_wrong_call_is_refused(lib):
    with pytest.raises(Unkeyable, match='does not fit'):
        key(lib.load)
    with pytest.raises(Unkeyable, match='argument vae: an object of type object cannot be compared'):
        key(lib.Model.from_pretrained, 'x', vae=object())


def test_paths_id_and_scope(lib, tmp_path):
    model = tmp_path / 'my model (1)'
    model.mkdir()
    one = key(lib.Model.from_pretrained, str(model), cache_dir=str(tmp_path))
    assert one.paths == [str(model)]
    assert (one.class_name, one.model_name) == ('Model', 'my model (1)')
    assert one.loader == 'somelib:Model.from_pretrained'
    assert one.id == f'Model-my_model_1-{one.digest[:12]}'
    assert re.fullmatch(r'[A-Za-z0-9][A-Za-z0-9._-]{0,199}', one.id)
    assert ('argument name', str(model)) in one.facts
    assert not one.hub_unresolved
    other = key(lib.Model.from_pretrained, str(model), cache_dir=str(tmp_path), dtype=2)
    assert other.scope != one.scope
    assert re.fullmatch(r'[A-Za-z0-9][A-Za-z0-9._-]{0,199}', key(lib.load, '/' + 'ä' * 500).id)


def test_hub(lib, tmp_path, monkeypatch):
    cache = tmp_path / 'hub'
    refs = cache / 'models--org--name' / 'refs'
    refs.mkdir(parents=True)
    monkeypatch.setenv('HF_HUB_CACHE', str(cache))
    import sys

    monkeypatch.delitem(sys.modules, 'huggingface_hub.constants', raising=False)
    load = lib.Model.from_pretrained
    assert key(load, 'org/name').hub_unresolved
    assert key(load, 'org/absent').hub_unresolved
    assert not key(lib.load, 'org/absent').hub_unresolved
    (refs / 'main').write_text(COMMIT)
    one = key(load, 'org/name')
    assert not one.hub_unresolved
    assert ('hub org/name@main', COMMIT) in one.facts
    assert one.model_name == 'name'
    assert one.paths == [str(cache / 'models--org--name' / 'snapshots' / COMMIT)]
    (refs / 'main').write_text(OTHER)
    two = key(load, 'org/name')
    assert two.digest != one.digest
    assert two.scope == one.scope
    assert key(load, 'org/name', revision=COMMIT).digest != two.digest
    assert not key(load, 'org/name', revision=COMMIT).hub_unresolved
    assert key(load, 'org/name', revision='v2').hub_unresolved
    assert key(load, 'org/name', cache_dir=str(tmp_path)).hub_unresolved
    assert key(load, 'x', model='org/name').digest != one.digest


def make(path, scale=2):
    return path, scale


class Loader:
    def __init__(self, n):
        self.n = n

    def __call__(self, path):
        return path

    def load(self, path):
        return path, self.n


def test_own_functions():
    assert ('argument path', 'p') in key(make, 'p').facts
    assert any(name == 'code' for name, _ in key(make, 'p').facts)
    other = types.FunctionType((lambda path, scale=2: path).__code__, globals(), argdefs=(2,))
    other.__module__, other.__qualname__ = make.__module__, make.__qualname__
    assert key(make, 'p').digest != key(other, 'p').digest
    keys = [key(Loader(1), 'p'), key(Loader(2), 'p'), key(Loader(1).load, 'p'), key(Loader(2).load, 'p'),
            key(Loader, 1), key(lambda p: p, 1), key(lambda p: 1, 1)]  # fmt: skip
    assert len({k.digest for k in keys}) == len(keys)
    assert key(Loader(1), 'p').digest == key(Loader(1), 'p').digest


def test_token_of_an_own_function_counts():
    def from_pretrained(path, token=None):
        return token

    assert ('argument token', '(hidden)') in key(from_pretrained, 'p', token='a').facts
    assert key(from_pretrained, 'p', token='a').digest != key(from_pretrained, 'p', token='b').digest


def test_builtin_loader():
    assert key(os.path.join, 'a', 'b').digest != key(os.path.join, 'a', 'c').digest
    assert key(len, 'abc').class_name == 'len'


def test_references(lib):
    vae, net, other = [1], [2], [3]
    tokens = {id(vae): 'vae-1', id(net): 'net-1', id(other): 'net-2'}

    def run(**kwargs):
        return lookup(lib.Model.from_pretrained, ('x',), kwargs, lambda o: tokens.get(id(o)))

    assert run(vae=vae, controlnet=[net, net]).digest == run(controlnet=[net, net], vae=vae).digest
    assert run(vae=vae, controlnet=[net, net]).digest != run(vae=vae, controlnet=[net, other]).digest


def test_environment(lib, monkeypatch):
    one = key(lib.load, 'x')
    monkeypatch.setenv('DIFFUSERS_ATTN_BACKEND', 'flash')
    assert key(lib.load, 'x').digest != one.digest
    assert key(lib.load, 'x').scope != one.scope  # both are asked for, neither supersedes the other
    monkeypatch.delenv('DIFFUSERS_ATTN_BACKEND')
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '1')
    one = key(lib.load, 'x')
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '5')
    assert key(lib.load, 'x').digest == one.digest


def test_torch_state(lib):
    torch = pytest.importorskip('torch')
    plain = key(lib.load, 'x').digest
    with torch.device('meta'):
        assert key(lib.load, 'x').digest != plain
    with torch.inference_mode():
        assert key(lib.load, 'x').digest != plain
    torch.set_default_dtype(torch.float64)
    try:
        assert key(lib.load, 'x').digest != plain
    finally:
        torch.set_default_dtype(torch.float32)
    assert key(lib.load, 'x').digest == plain
    from torch.overrides import TorchFunctionMode

    with TorchFunctionMode(), pytest.raises(Unkeyable, match='function mode'):
        key(lib.load, 'x')
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(), pytest.raises(Unkeyable, match='dispatch mode'):
        key(lib.load, 'x')


def test_init_empty_weights(lib):
    accelerate = pytest.importorskip('accelerate')
    plain = key(lib.load, 'x').digest
    with accelerate.init_empty_weights():
        assert key(lib.load, 'x').digest != plain


def test_wrapped_wrapt(lib):
    wrapt = pytest.importorskip('wrapt')
    wrapper = wrapt.FunctionWrapper(lib.load, lambda f, i, a, k: f(*a, **k))
    assert key(wrapper.__wrapped__, 'x').digest == key(lib.load, 'x').digest


class Allowed:
    """Of the program's own."""


def test_classes_that_torch_load_may_make(lib):
    """Without them the plain load fails, and so must the one through the cache."""
    before = key(lib.Model.from_pretrained, 'x').digest
    with torch.serialization.safe_globals([Allowed]):
        assert key(lib.Model.from_pretrained, 'x').digest != before
    with torch.serialization.safe_globals([collections.Counter]):
        assert key(lib.Model.from_pretrained, 'x').digest == before
