"""``python -m integration.bench.ways``: the same pipeline through every way to reach the arenas, side by side."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from integration.checkpoints import build
from integration.checkpoints.configs import SIZES
from integration.harness.daemon import WAYS, Daemon
from integration.harness.places import checkpoint_folder, work_folder
from integration.harness.progress import progress
from integration.harness.runs import RunError, environment, run
from integration.harness.table import seconds, table

STAGES = ('load', 'touch')
PROMISED = 1.2  # a hit by fd passing takes at most so many times what it takes by passthrough

Runs = dict[str, list[dict[str, Any]]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m integration.bench.ways', description=__doc__)
    parser.add_argument('--repeat', type=int, default=7, metavar='N', help='processes for each way (default 7)')
    parser.add_argument('--size', choices=SIZES, default='true')
    parser.add_argument('--check', action='store_true', help='fail when fd passing takes too much longer')
    default = work_folder() / 'results' / 'ways.json'
    parser.add_argument('-o', '--output', type=Path, default=default, metavar='FILE', help=f'default {default}')
    return parser.parse_args()


@contextmanager
def places(folder: Path) -> Iterator[dict[str, dict[str, str]]]:
    """The environment of each way. ``read`` asks the daemon of ``fd`` for copies, which saves a third one's memory."""
    plain = folder / 'directory'
    plain.mkdir()
    with Daemon(folder / 'passthrough', *WAYS['passthrough']) as first, Daemon(folder / 'fd', *WAYS['fd']) as second:
        roots = {'passthrough': first.root, 'fd': second.root, 'read': second.root, 'directory': plain}
        yield {
            way: environment(root, OVERMIND_STRICT='1', **({'OVERMIND_ACCESS': 'read'} if way == 'read' else {}))
            for way, root in roots.items()
        }


def _checked(way: str, outcome: str, result: dict[str, Any]) -> dict[str, Any]:
    found = {(load['outcome'], load['access']) for load in result['stats']['loads']}
    if found != {(outcome, way)}:
        raise RunError(f'expected ({outcome}, {way}) for all loads, got {found}')
    return result


def measure(environments: Mapping[str, Mapping[str, str]], checkpoint: Path, repeat: int) -> Runs:
    """Fill once for each place, then ``repeat`` processes for each way, in turn."""
    options = (checkpoint, '--touch', '--cache')
    for way, env in environments.items():
        if way != 'read':
            with progress(f'{way}: fill'):
                _checked(way, 'miss', run(*options, env=env))
    runs: Runs = {way: [] for way in environments}
    for number in range(repeat):
        for way, env in environments.items():
            with progress(f'{way}: process {number + 1} of {repeat}'):
                runs[way].append(_checked(way, 'hit', run(*options, env=env)))
    return runs


def _values(runs: Runs, way: str, what: str) -> list[float]:
    if what in STAGES:
        return [result['seconds'][what] for result in runs[way]]
    return [sum(load['seconds'][what] for load in result['stats']['loads']) for result in runs[way]]


def _cell(values: list[float]) -> str:
    return f'{seconds(statistics.median(values))} ({seconds(min(values))} - {seconds(max(values))})'


def as_table(runs: Runs) -> str:
    columns = ('load', 'open', 'map', 'rebuild', 'touch')
    rows = [[way, *(_cell(_values(runs, way, what)) for what in columns)] for way in runs]
    return table(['way, median (least - most)', *columns], rows)


def ratio(runs: Runs) -> float:
    """Of the medians of a whole hit."""
    by_fd, by_passthrough = [statistics.median(_values(runs, way, 'load')) for way in ('fd', 'passthrough')]
    return by_fd / by_passthrough


def main() -> int:
    args = arguments()
    with progress('the checkpoint (made once)'):
        checkpoint = build(checkpoint_folder(args.size, 'fp16'), args.size, 'fp16')
    # In shared memory, so that the plain directory is on a tmpfs.
    temporary = tempfile.TemporaryDirectory(prefix='overmind-ways-', dir='/dev/shm')
    with temporary as folder, places(Path(folder)) as environments:
        runs = measure(environments, checkpoint, args.repeat)
    found = ratio(runs)
    print(f'\n{as_table(runs)}\n\na hit by fd passing takes {found:.2f} times what it takes by passthrough')
    args.output.parent.mkdir(parents=True, exist_ok=True)
    kept = {
        way: [{name: one[name] for name in ('seconds', 'stats')} for one in results] for way, results in runs.items()
    }
    args.output.write_text(json.dumps({'size': args.size, 'ratio': found, 'runs': kept}, indent=1))
    print(f'written: {args.output}')
    if found > PROMISED:
        print(f'NOT REACHED: fd passing within {PROMISED} times of passthrough')
        return 1 if args.check else 0
    return 0


if __name__ == '__main__':
    sys.exit(main())
