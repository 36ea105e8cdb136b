"""Objects of the cache inside of what is passed: the caller's own ones, changes included, or a bypass that says so."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from overmind import cache
from overmind.api import load, stats
from overmind.references import Registry


def part(path: str) -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    module.load_state_dict(torch.load(path))
    return module


@dataclasses.dataclass
class Parts:
    inner: Any
    scale: int = 1


class Own:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def whole(self) -> dict[str, Any]:
        return {'inner': self.inner}


def whole(parts: Any) -> dict[str, Any]:
    return {'inner': parts.inner, 'own': torch.arange(2)}


def first(parts: Any) -> dict[str, Any]:
    return {'inner': next(iter(parts)), 'own': torch.arange(2)}


def closed_over(inner: Any) -> Callable[[], Any]:
    def made() -> Any:
        return {'inner': inner}

    return made


HELD: Any = None


def of_a_global() -> Any:
    return {'inner': HELD}


@pytest.fixture
def inner(root: pathlib.Path, tmp_path: pathlib.Path) -> Callable[[], Any]:
    """The cached object, as each process gets it anew."""
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / 'x.pt')

    def again() -> Any:
        cache._registry = Registry()
        return load(part, str(tmp_path / 'x.pt'))

    return again


INSIDE: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    'dataclass': lambda m: (whole, Parts(m)),
    'object of the program': lambda m: (whole, Own(m)),
    'namespace': lambda m: (whole, types.SimpleNamespace(inner=m)),
    'partial': lambda m: (functools.partial(whole, Own(m)),),
}
BEYOND: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    'set': lambda m: (first, {m}),
    'method': lambda m: (Own(m).whole,),
    'partial in an argument': lambda m: (first, [functools.partial(whole, m)]),
    'closure': lambda m: (closed_over(m),),
    'global': lambda m: (set_global(m),),
}


def set_global(m: Any) -> Callable[[], Any]:
    global HELD
    HELD = m
    return of_a_global


@pytest.mark.parametrize('how', INSIDE)
def test_it_is_the_callers_own(inner: Callable[[], Any], how: str) -> None:
    one = inner()
    assert load(*INSIDE[how](one))['inner'] is one
    other = inner()
    with torch.no_grad():
        other.weight.zero_()
    back = load(*INSIDE[how](other))
    assert stats().loads[-1].outcome == 'hit'
    assert back['inner'] is other
    assert not back['inner'].weight.any()


@pytest.mark.parametrize('how', BEYOND)
def test_what_nobody_could_put_back_is_a_bypass(
    inner: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.delenv('OVERMIND_STRICT')
    for _ in range(2):
        one = inner()
        with torch.no_grad():
            one.weight.zero_()
        back = load(*BEYOND[how](one))
        assert stats().loads[-1].outcome == 'bypass', how
        assert 'Linear from the cache' in stats().loads[-1].reason
        held = back['inner']
        assert held is one or held.args[0] is one
