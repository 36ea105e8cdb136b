"""``python -m integration.tests.child``: loads when it is told to; one command a line, one answer a line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import overmind.api
import torch
from overmind.errors import OvermindError

from integration.program import digest, memory
from integration.tests import loaders

_loaded: Any = None


def _tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    items = value.items() if isinstance(value, dict) else [('', value)]
    yield from ((name, tensor) for name, tensor in items)


def _load(name: str, *arguments: str) -> dict[str, Any]:
    global _loaded
    start = time.perf_counter()
    try:
        _loaded = overmind.api.load(getattr(loaders, name), *arguments)
    except OvermindError as error:
        return {'raised': type(error).__name__, 'text': str(error)}
    return {'seconds': time.perf_counter() - start, **_digest(), **_stats()}


def _digest() -> dict[str, Any]:
    whole = hashlib.sha256()
    for name, tensor in _tensors(_loaded):
        facts = f'{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.storage_offset()}'
        whole.update(f'{facts} {digest(tensor)}\n'.encode())
    return {'digest': whole.hexdigest()}


def _stats() -> dict[str, Any]:
    return dataclasses.asdict(overmind.api.stats())


def _overwrite() -> dict[str, Any]:
    for _, tensor in _tensors(_loaded):
        tensor.zero_()
    return _digest()


def _drop() -> dict[str, Any]:
    global _loaded
    _loaded = None
    return {}


COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    'load': _load,
    'digest': _digest,
    'stats': _stats,
    'overwrite': _overwrite,
    'drop': _drop,
    'memory': memory,
}


def main() -> None:
    print(json.dumps({'ready': True}), flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps(COMMANDS[name](*arguments)), flush=True)


if __name__ == '__main__':
    main()
