"""Where in a result an object lies, for the reason why the result cannot be kept."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

MAX_OBJECTS = 100_000
_LEAVES = (str, bytes, int, float, complex, type, types.FunctionType, types.ModuleType, torch.Tensor, type(None))


def place(top: Any, wanted: Any) -> str:
    """As one would write it, such as ``result['unet'].encoder[0].log``; empty where it is not found that way."""
    if wanted is top:
        return 'result'
    seen = {id(top)}
    todo = deque([(top, 'result')])
    while todo and len(seen) < MAX_OBJECTS:
        obj, at = todo.popleft()
        for step, part in _parts(obj):
            if part is wanted:
                return at + step
            if id(part) not in seen and not isinstance(part, _LEAVES):
                seen.add(id(part))
                todo.append((part, at + step))
    return ''


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        for key, value in list(obj.items()):
            yield f'[{key!r}]' if isinstance(key, (str, int)) else '[...]', value
    elif isinstance(obj, (list, tuple)):
        for i, value in enumerate(obj):
            yield f'[{i}]', value
    try:
        attributes = dict(vars(obj))
    except Exception:
        return
    if isinstance(obj, torch.nn.Module):
        for kind in ('_modules', '_parameters', '_buffers'):
            for name, value in attributes.pop(kind, {}).items():
                yield f'[{name}]' if name.isdigit() else f'.{name}', value
    for name, value in attributes.items():
        yield f'.{name}', value
