"""The kinds of tensors below modules, where neither is torch's."""

import gc
import sys
from types import SimpleNamespace

import pytest

from overmind_cext import kinds


class Tensor:
    def __init__(self, dtype, device="cpu", requires_grad=True):
        self.dtype, self.device, self.requires_grad = dtype, device, requires_grad


class Module:
    def __init__(self, training=True, parameters=(), buffers=(), **below):
        self.training = training
        self._parameters = dict(enumerate(parameters))
        self._buffers = dict(enumerate(buffers))
        self._modules = below


def test_of_all_below():
    half = [Tensor("half") for _ in range(3)]
    child = Module(False, half, [Tensor("long", requires_grad=False), None])
    other = Module(True, [Tensor("half", "cuda"), Tensor("half")])
    assert kinds([Module(a=child, b=None, c=other)]) == (
        {True, False}, {("half", "cpu", True), ("long", "cpu", False), ("half", "cuda", True)}
    )  # fmt: skip


def test_nothing():
    assert kinds([]) == (set(), set())
    assert kinds([None]) == (set(), set())
    assert kinds(iter([Module()])) == ({True}, set())


def test_each_module_once_also_in_a_circle():
    one, counted = Module(), []

    class Counts(Tensor):
        @property
        def dtype(self):
            counted.append(1)
            return "half"

        def __init__(self):
            self.device, self.requires_grad = "cpu", True

    one._parameters[0] = Counts()
    one._modules["self"] = one
    two = Module(a=one)
    one._modules["two"] = two
    given = [one, two, one]
    assert kinds(given) == ({True}, {("half", "cpu", True)})
    assert (len(counted), given) == (1, [one, two, one])


def test_attributes_that_the_class_has():
    class Scripted:
        __slots__ = ()
        training = True
        _parameters = SimpleNamespace(values=lambda: (Tensor("half"),))
        _buffers = None
        _modules = SimpleNamespace(values=lambda: [Module(False)])

    assert kinds([Scripted()]) == ({True, False}, {("half", "cpu", True)})


@pytest.mark.parametrize("broken", ["training", "_parameters", "_buffers", "_modules"])
def test_what_is_no_module(broken):
    module = Module()
    delattr(module, broken)
    with pytest.raises(AttributeError, match=broken):
        kinds([module])


def test_what_is_no_tensor():
    with pytest.raises(AttributeError, match="dtype"):
        kinds([Module(parameters=[3])])
    with pytest.raises(TypeError):
        kinds([Module(parameters=[Tensor([])])])  # not hashable
    with pytest.raises(TypeError):
        kinds(3)


def test_one_that_changes_modules_while_it_is_looked_at():
    module = Module(parameters=[Tensor("half")])

    class Clears(Tensor):
        @property
        def device(self):
            module._parameters.clear()
            module._modules.clear()
            gc.collect()
            return "cpu"

        def __init__(self):
            self.dtype, self.requires_grad = "half", True

    module._parameters.update({0: Clears(), 1: Tensor("float"), 2: Tensor("float")})
    assert kinds([module]) == ({True}, {("half", "cpu", True), ("float", "cpu", True)})


def test_no_reference_is_kept():
    dtype, device = object(), object()
    module = Module(parameters=[Tensor(dtype, device), Tensor(dtype, device)])
    before = [sys.getrefcount(one) for one in (dtype, device, module, module._parameters, module._parameters[0])]
    for _ in range(10):
        kinds([module])
    assert before == [
        sys.getrefcount(one) for one in (dtype, device, module, module._parameters, module._parameters[0])
    ]
