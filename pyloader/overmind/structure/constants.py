"""Tuples that are constants of a library's code, shared by every object that holds them.

A diffusers pipeline keeps one ``(None, None)`` of ``register_modules`` for each component that it lacks; it is the same
object in every pipeline of a process, and stays so when pipelines come from the cache.
"""

from __future__ import annotations

import importlib
from typing import Any

from overmind.errors import CorruptEntry

Pid = tuple[str, str, int]


def constants(cls: Any) -> dict[int, Pid]:
    """The constant tuples of a pipeline class, by id, and the persistent ids that stand for them."""
    function = cls.register_modules
    code = getattr(function, '__code__', None)
    if code is None:
        return {}
    name = f'{function.__module__}:{function.__qualname__}'
    return {id(c): ('constant', name, i) for i, c in enumerate(code.co_consts) if isinstance(c, tuple) and c}


def constant(name: str, index: int) -> Any:
    """The tuple that a persistent id means. Raises CorruptEntry where there is no such constant."""
    module, _, path = name.partition(':')
    try:
        found: Any = importlib.import_module(module)
        for part in path.split('.'):
            found = getattr(found, part)
        value = found.__code__.co_consts[index]
    except (ImportError, AttributeError, IndexError, TypeError) as e:
        raise CorruptEntry(f'the structure refers to constant {index} of {name}, which is not there') from e
    if not isinstance(value, tuple):
        raise CorruptEntry(f'constant {index} of {name} is no tuple')
    return value
