"""The function that gives a module its attributes."""

import gc
import sys
from collections import OrderedDict

import pytest

from overmind_cext import module_filler

NAMES = {"training": True, "_parameters": None, "_hooks": None, "_names": None, "_full": None}
KINDS = {"_parameters": dict, "_hooks": OrderedDict, "_names": set}


class Module:
    def __setattr__(self, name, value):
        raise AssertionError("torch's takes its time")


def test_what_is_empty_is_made_anew():
    fill, one, other = module_filler(NAMES, KINDS), Module(), Module()
    hooks = OrderedDict(a=1)
    assert fill(one, {"training": False, "_hooks": hooks, "in_features": 3}) is None
    fill(other, {})
    assert list(vars(one)) == [*NAMES, "in_features"]
    assert vars(one) == {
        "training": False, "_parameters": {}, "_hooks": hooks, "_names": set(), "_full": None, "in_features": 3
    }  # fmt: skip
    assert vars(one)["_hooks"] is hooks
    assert list(vars(other).values()) == [True, {}, OrderedDict(), set(), None]
    assert {name: type(vars(other)[name]) for name in KINDS} == KINDS
    assert all(vars(one)[name] is not vars(other)[name] for name in KINDS)
    vars(other)["_hooks"]["x"] = 1
    vars(other)["_names"].add(2)
    assert list(vars(other)["_hooks"].items()) == [("x", 1)]
    assert vars(one)["_names"] == set()


def test_later_changes_of_what_it_was_made_of_change_nothing():
    names, kinds = dict(NAMES), dict(KINDS)
    fill = module_filler(names, kinds)
    names.clear()
    kinds["_more"] = list
    module = Module()
    fill(module, {})
    assert list(vars(module)) == list(NAMES)


def test_the_attributes_replace_all_there_were():
    module = Module()
    vars(module)["old"] = 1
    module_filler({}, {})(module, {"new": 2})
    assert vars(module) == {"new": 2}


@pytest.mark.parametrize(
    "given",
    [(None, {}), ({}, None), ({}, {"a": list}), ({}, {"a": 3}), ({}, {"a": {}}), ({}, {"a": int}), ({},)],
    ids=str,
)
def test_what_no_filler_is_made_of(given):
    with pytest.raises(TypeError):
        module_filler(*given)


@pytest.mark.parametrize("given", [(object(), {}), (3, {}), (Module(), None), (Module(), [("a", 1)]), (Module(),), ()])
def test_what_is_no_module_and_what_are_no_attributes(given):
    with pytest.raises((TypeError, AttributeError)):
        module_filler(NAMES, KINDS)(*given)


def count(fill, attributes, modules):
    for module in modules:
        try:
            fill(module, attributes)
        except AttributeError:
            continue
    return sys.getrefcount(attributes["value"])


def test_nothing_is_kept():
    attributes, fill = {"value": object()}, module_filler(NAMES, KINDS)
    before = count(fill, attributes, [])
    assert count(fill, attributes, [object() for _ in range(50)]) == before
    modules = [Module() for _ in range(50)]
    assert count(fill, attributes, modules) == before + 50
    del modules
    gc.collect()
    assert count(fill, attributes, []) == before
