"""The program under test, a process of its own each time: imports, patch, load, touch; one line of JSON.

``--wait`` makes it print a line of JSON and read a line, after the imports and at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from integration import program
from integration.bench import loads


def touch(storages: dict[int, Any]) -> int:
    """Read a byte of every page of every storage; the sum, so that nothing can be left out."""
    import torch

    total, empty = 0, torch.empty(0, dtype=torch.uint8)
    for storage in storages.values():
        pages = empty.set_(storage)
        total += int(pages[:: program.PAGE].sum()) + int(pages[-1])
    return total


def _memory() -> dict[str, int]:
    """Bytes of this process now, and the most it was ever resident with."""
    # ru_maxrss of a process that was forked by a large one is the large one's; VmHWM is its own.
    lines = Path('/proc/self/status').read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith('VmHWM:'))
    return {**program.memory(), 'peak': peak, 'huge': program.huge_pages()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('what', choices=[*loads.LOADS, *loads.TENSOR_LOADS])
    parser.add_argument('checkpoint', type=Path)
    parser.add_argument('--dtype', default='float16', help='of the loaded weights, whatever the files hold')
    parser.add_argument('--cache', action='store_true', help='patch the loaders first')
    parser.add_argument('--wait', action='store_true')
    return parser.parse_args()


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def _patch(watch: program.Stopwatch) -> list[str]:
    """Patch, and name the libraries that this alone imported."""
    before = set(sys.modules)
    with watch.stage('patch'):
        program.patch()
    heavy = {'torch', 'diffusers', 'transformers', 'safetensors', 'torchvision', 'timm', 'open_clip', 'peft'}
    return sorted(heavy & {name.partition('.')[0] for name in set(sys.modules) - before})


def main() -> None:
    args = arguments()
    what = {**loads.LOADS, **loads.TENSOR_LOADS}[args.what]
    watch = program.Stopwatch()
    result: dict[str, Any] = {'seconds': watch.seconds}
    if args.cache:
        result['imported'] = _patch(watch)  # first, as everybody is told to
    with watch.stage('import'):
        what.imports()
    import torch

    dtype = getattr(torch, args.dtype)
    if args.wait:
        say({'memory': program.memory()})
        sys.stdin.readline()
    result['before'] = _memory()
    used = resource.getrusage(resource.RUSAGE_SELF)
    asked = time.perf_counter()
    with watch.stage('load'):
        loaded = what.load(args.checkpoint, dtype)
    # The clock of all processes of a machine.
    result['ready_at'] = time.clock_gettime(time.CLOCK_MONOTONIC)
    now = resource.getrusage(resource.RUSAGE_SELF)
    result['cpu'] = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    storages = loads.storages(loaded)
    with watch.stage('touch'):
        result['touched'] = touch(storages)
    tokenizer = getattr(loaded, 'tokenizer', None)
    if tokenizer is not None:
        with watch.stage('prompt'):
            tokenizer(program.PROMPT)
    result['after'] = _memory()
    result['storages'], result['bytes'] = len(storages), sum(storage.nbytes() for storage in storages.values())
    if args.cache:
        # From the call until others find the entry, which with overmind-cache is when the call returns.
        result['kept'] = time.perf_counter() - asked if _finished() else watch.seconds['load']
        if counted := _counted():
            result['stats'] = counted
    say(result)
    if args.wait:
        sys.stdin.readline()
        say({'memory': program.memory()})
        sys.stdin.readline()
    sys.stdout.flush()
    # Some of the libraries take seconds to end, or crash in it.
    os._exit(0)


def _finished() -> bool:
    """Whether entries were being written while this program went on; now they are there."""
    import overmind.api

    if not hasattr(overmind.api, 'finish_fills'):
        return False
    before = [load for load in overmind.api.stats().loads if 'fork' in load.seconds]
    overmind.api.finish_fills()
    return bool(before)


def _counted() -> dict[str, Any]:
    """What the cache says that it did; overmind-cache says nothing."""
    import overmind.api

    return program.counted() if hasattr(overmind.api, 'stats') else {}


if __name__ == '__main__':
    main()
