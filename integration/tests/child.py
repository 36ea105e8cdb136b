"""``python -m integration.tests.child``: loads when it is told to; one command a line, one answer a line.

With a descriptor as its argument it is a fork server, and every fork does that.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import overmind.api
import overmind_cext
import torch
from overmind.errors import OvermindError

from integration.harness import forkserver
from integration.program import digest, memory
from integration.tests import loaders
from integration.tests.limits import LIMITS
from integration.tests.seccomp import deny
from integration.tests.spaces import SPACES
from integration.tests.stages import hold_copies, stop_at

_loaded: Any = None
# What a load imports; a child may be a user by then who may not read these files.
_LATER = ('overmind.cache', 'overmind.control.client', 'overmind.fill', 'overmind.restore', 'torch.utils.dlpack')


def _tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    items = value.items() if isinstance(value, dict) else [('', value)]
    yield from ((name, tensor) for name, tensor in items)


def _load(name: str, *arguments: str) -> dict[str, Any]:
    global _loaded
    start = time.perf_counter()
    try:
        _loaded = overmind.api.load(getattr(loaders, name), *arguments)
    except (OvermindError, KeyboardInterrupt) as error:
        return {'raised': type(error).__name__, 'text': str(error)}
    return {'seconds': time.perf_counter() - start, **_digest(), **_stats()}


def _untouched(name: str, *arguments: str) -> dict[str, Any]:
    """As load, but none of its memory is read."""
    global _loaded
    _loaded = overmind.api.load(getattr(loaders, name), *arguments)
    return _stats()


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


def _finish() -> dict[str, Any]:
    overmind.api.finish_fills()
    return _stats()


def _fork() -> dict[str, Any]:
    """A process that has what this one has, and lives until this one's input ends."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    return {'pid': pid}


def _replace() -> dict[str, Any]:
    """Become another program, which keeps the standard streams."""
    os.execv(sys.executable, [sys.executable, '-c', 'print("{}", flush=True); input()'])


def _cycles(root: str, count: str) -> dict[str, Any]:
    """Load and evict, again and again."""
    for _ in range(int(count)):
        _load('numbered', '1')
        for entry in os.listdir(os.path.join(root, 'pipelines')):
            os.rmdir(os.path.join(root, 'pipelines', entry))
    return _drop()


def _again(count: str, digest: str) -> dict[str, Any]:
    """Load the assorted tensors again and again; how often they were right."""
    right = 0
    for _ in range(int(count)):
        right += _load('assorted').get('digest') == digest
        _drop()
    return {'right': right}


def _compute(signs: str) -> dict[str, Any]:
    """Go over the weights again and again while a file is there, and count the rounds in another one; whether every
    round gave the same."""
    results = set()
    rounds = 0
    while rounds < 2 or os.path.exists(os.path.join(signs, 'wait')):
        results.add(_digest()['digest'])
        rounds += 1
        with open(os.path.join(signs, f'rounds-{os.getpid()}'), 'a') as f:
            f.write('.')
    return {'results': sorted(results)}


COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    'load': _load,
    'load_untouched': _untouched,
    'digest': _digest,
    'stats': _stats,
    'overwrite': _overwrite,
    'drop': _drop,
    'memory': memory,
    'mappings': lambda: {'live': overmind_cext.live_mappings()},
    'fork': _fork,
    'replace': _replace,
    'cycles': _cycles,
    'compute': _compute,
    'again': _again,
    'stop_at': stop_at,
    'hold_copies': hold_copies,
    'finish': _finish,
    'deny': deny,
    **LIMITS,
    **SPACES,
}


def main() -> None:
    if sys.argv[1:]:
        for name in _LATER:
            importlib.import_module(name)
        if not forkserver.serve(int(sys.argv[1])):
            return
    print(json.dumps({'ready': True}), flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps(COMMANDS[name](*arguments)), flush=True)


if __name__ == '__main__':
    main()
