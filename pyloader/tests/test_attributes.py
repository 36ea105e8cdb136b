"""The attributes of modules: what is empty is not written, and comes back as it was."""

from __future__ import annotations

import collections
import copy
import weakref
from typing import Any, ClassVar

import pytest
import torch
from roundtrip import roundtrip
from torch import nn

from overmind.references import References, Registry
from overmind.structure.attributes import Attributes
from overmind.structure.pickler import dumps
from overmind.structure.table import Table


def same(a: nn.Module, b: nn.Module) -> None:
    assert list(vars(a)) == list(vars(b))
    for name, value in vars(a).items():
        assert type(value) is type(vars(b)[name]), name
        if name not in ('_parameters', '_buffers', '_modules') and not callable(value):
            assert list(value) == list(vars(b)[name]) if isinstance(value, dict) else value == vars(b)[name]


def written(obj: Any) -> bytes:
    return dumps(obj, Table(), References(Registry(), {}).targets())[0]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Dropout(), nn.ReLU())).eval()


def test_every_attribute_in_its_order() -> None:
    one = model()
    one[0].register_buffer('extra', torch.ones(1), persistent=False)
    back = roundtrip(one)
    for a, b in zip(one.modules(), back.modules(), strict=True):
        same(a, b)
    assert b'_forward_hooks' in written(one)
    assert written(one).count(b'OrderedDict') == 1
    assert len(written(one)) < 3000
    assert torch.equal(one(torch.ones(2, 3)), back(torch.ones(2, 3)))


def test_each_module_has_containers_of_its_own() -> None:
    back = roundtrip(model())
    for name in Attributes().kinds:
        assert len({id(vars(m)[name]) for m in back.modules()}) == len(list(back.modules()))
    back[0].register_forward_hook(lambda *_: None)
    assert [len(m._forward_hooks) for m in back.modules()] == [0, 1, 0, 0, 0, 0]


def test_containers_that_are_shared_stay_shared() -> None:
    """As after copy.copy of a module."""
    one = nn.Linear(2, 2)
    other = copy.copy(one)
    assert other._forward_hooks is one._forward_hooks
    back = roundtrip([one, other])
    assert back[0]._forward_hooks is back[1]._forward_hooks
    assert back[0]._buffers is back[1]._buffers
    same(one, back[0])


@pytest.mark.parametrize('name', ['_forward_hooks', '_buffers', '_non_persistent_buffers_set'])
def test_a_container_that_somebody_else_has_too(name: str) -> None:
    one = nn.Linear(2, 2)
    for order in ([vars(one)[name], one], [one, vars(one)[name]]):
        back = roundtrip(order)
        module, container = back if isinstance(back[0], nn.Module) else back[::-1]
        assert vars(module)[name] is container


def test_a_container_with_a_weak_reference_to_it() -> None:
    one = nn.Linear(2, 2)
    handle = one.register_forward_hook(print)
    handle.remove()
    reference = weakref.ref(one._forward_hooks)
    module, back = roundtrip([one, reference])
    assert back() is module._forward_hooks


def test_a_container_with_attributes() -> None:
    one = nn.Linear(2, 2)
    one._forward_hooks.note = 'kept'  # type: ignore[attr-defined]
    assert roundtrip(one)._forward_hooks.note == 'kept'


class Another(collections.OrderedDict[str, Any]):
    pass


def test_containers_of_other_classes() -> None:
    one = nn.Linear(2, 2)
    vars(one)['_state_dict_hooks'] = Another()
    vars(one)['_buffers'] = collections.OrderedDict()
    vars(one)['_is_full_backward_hook'] = False
    same(one, roundtrip(one))


def test_another_order_and_missing_names() -> None:
    one = nn.Linear(2, 2)
    state = dict(vars(one))
    vars(one).clear()
    vars(one).update({'first': 1, **state})
    same(one, roundtrip(one))
    del vars(one)['_state_dict_pre_hooks']  # of an older torch; __setstate__ adds it
    back = roundtrip(one)
    assert back._state_dict_pre_hooks == {}


class Stateful(nn.Module):
    """Says itself what is to be kept."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != 'cache'}


def test_a_module_that_says_what_is_kept() -> None:
    one = Stateful()
    vars(one)['cache'] = [1]
    vars(one)['value'] = 2
    back = roundtrip(one)
    assert back.value == 2
    assert not hasattr(back, 'cache')
    del vars(one)['cache']
    same(one, back)


class Lent(nn.Module):
    """Its state has a container that is not its own."""

    hooks: ClassVar[dict[str, Any]] = collections.OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), '_forward_hooks': self.hooks}


def test_modules_whose_states_share_a_container() -> None:
    back = roundtrip([Lent(), Lent()])
    assert back[0]._forward_hooks is back[1]._forward_hooks


def test_a_module_in_itself() -> None:
    one = nn.Linear(2, 2)
    vars(one)['me'] = one
    back = roundtrip(one)
    assert back.me is back


def test_modules_that_share_their_dict() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.__dict__ = one.__dict__
    back = roundtrip([one, other])
    assert back[0]._forward_hooks is back[1]._forward_hooks
    module, attributes = roundtrip([one, vars(one)])
    assert module._forward_hooks is attributes['_forward_hooks']


@pytest.mark.parametrize('extra', [None, object(), [1]])
def test_a_class_that_the_program_has_changed(extra: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a profiler keeps of every module is no reason to take what is shared for what is not."""
    kept: list[Any] = []
    usual = nn.Module.__init__

    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        usual(self, *args, **kwargs)
        kept.append(self._buffers)
        if extra is not None:
            vars(self)['extra'] = extra

    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    vars(other)['_forward_hooks'] = vars(one)['_forward_hooks']
    monkeypatch.setattr(nn.Module, '__init__', init)
    back = roundtrip([one, other])
    assert back[0]._forward_hooks is back[1]._forward_hooks
    same(one, back[0])
