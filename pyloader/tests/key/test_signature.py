"""Arguments of bound methods, and of copies of bound methods as transformers' auto classes have them."""

from __future__ import annotations

import functools
import types
from typing import Any

from overmind.key.canonical import no_reference
from overmind.key.lookup import LookupKey, lookup


class Base:
    @classmethod
    def from_pretrained(cls, name: str, *more: int, **rest: int) -> None:
        """Loads nothing."""


def copy(fn: Any) -> Any:
    """As in transformers: the copy says that it wraps the bound method."""
    inner = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    return classmethod(functools.update_wrapper(inner, fn))


class Copied(Base):
    from_pretrained = copy(Base.from_pretrained)


def key(fn: object, *args: object, **kwargs: object) -> LookupKey:
    return lookup(fn, args, kwargs, no_reference)  # type: ignore[arg-type]


def test_the_first_argument_has_its_name() -> None:
    for cls in (Base, Copied):
        one = key(cls.from_pretrained, 'org/name', a=1)
        assert ('argument name', 'org/name') in one.facts
        assert one.digest == key(cls.from_pretrained, name='org/name', a=1).digest
        assert one.digest != key(cls.from_pretrained, 'org/name', 1).digest
        assert one.hub_unresolved


class Starred:
    @classmethod
    def make(*args: object, **more: object) -> object:
        return args

    def again(*args: object) -> object:
        return args


def test_arguments_behind_what_a_method_is_bound_to() -> None:
    for fn in (Starred.make, Starred().again):
        keys = {key(fn, *args).digest for args in ((), (1,), (2,), (1, 2))}
        assert len(keys) == 4
        assert ('argument args', '[1]') in key(fn, 1).facts
