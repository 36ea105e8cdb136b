"""Objects such as ``MISSING = object()``, which code compares by identity: a copy of one would be another one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from overmind.key.origin import is_first_party

_POINTER = object.__basicsize__ // 2
_STATE = ('__eq__', '__reduce__', '__reduce_ex__', '__getstate__')


def may_be(obj: Any, t: type) -> bool:
    """Whether an object has nothing but its class and its identity."""
    return (
        t.__basicsize__ <= object.__basicsize__ + 2 * _POINTER  # no more than __dict__ and __weakref__
        and not t.__itemsize__
        and not getattr(obj, '__dict__', None)
        and all(getattr(t, name, None) is getattr(object, name, None) for name in _STATE)
        and not any(c.__dict__.get('__slots__') for c in t.__mro__)
    )


def name_of(obj: Any, t: type, modules: Iterable[str]) -> tuple[str, str] | None:
    """The module and the name of a sentinel: in the module of its class, or for an ``object()`` in the given ones and
    in those of the user's."""
    named = [*modules, *filter(is_first_party, list(sys.modules))] if t is object else [t.__module__]
    for module in named:
        for name, value in list(getattr(sys.modules.get(module), '__dict__', {}).items()):
            if value is obj:
                return module, name
    return None
