"""What the tensors of a result are called, and which arena each belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from overmind.structure.table import Table


def name_tensors(obj: Any, table: Table) -> None:
    """Dotted paths for the tensors that people know by name; one arena for each component of a pipeline."""
    if hasattr(type(obj), 'components') and hasattr(type(obj), 'register_modules'):
        for component, part in obj.components.items():
            for name, t in _named(part, ''):
                table.name(t, safe(component), name)
    else:
        for name, t in _named(obj, ''):
            table.name(t, 'model', name)


def safe(component: str) -> str:
    """A name that can be a file: ``[A-Za-z0-9_][A-Za-z0-9._-]*``, at most 60 characters."""
    text = re.sub(r'[^A-Za-z0-9._-]', '_', component)[:60]
    return text if text and text[0] not in '.-' else f'_{text}'


def _named(obj: Any, at: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(obj, torch.Tensor):
        yield at or 'tensor', obj
    elif isinstance(obj, torch.jit.ScriptModule):
        dot = f'{at}.' if at else ''
        for name, t in (*obj.named_parameters(remove_duplicate=False), *obj.named_buffers(remove_duplicate=False)):
            yield f'{dot}{name}', t
    elif isinstance(obj, torch.nn.Module):
        dot = f'{at}.' if at else ''
        for name, module in obj.named_modules(remove_duplicate=False):
            for tensors in (module._parameters, module._buffers):
                for key, t in tensors.items():
                    if t is not None:
                        yield f'{dot}{name}.{key}' if name else f'{dot}{key}', t
    elif depth < 4 and isinstance(obj, (dict, list, tuple)):
        items = obj.items() if isinstance(obj, dict) else enumerate(obj)
        for key, value in items:
            yield from _named(value, f'{at}.{key}' if at else str(key), depth + 1)
    elif depth < 2 and isinstance(getattr(obj, 'model', None), torch.nn.Module):
        yield from _named(obj.model, at, depth + 1)
