"""``python -m integration.bench``: measure, print tables, write the figures and a picture of them."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from integration.bench import copying, crowd, daemon, memory, plot, promises, report, restart, storages
from integration.bench.caches import Cache, caches
from integration.bench.figures import Footprints
from integration.bench.measure import Counts, fill, measure, suits
from integration.bench.opponents import (
    GROUPS,
    OPPONENTS,
    OURS,
    OURS_OLDER,
    PLAIN,
    PLAIN_OLDER,
    READERS,
    THEIRS,
    UNPICKLER,
    Opponent,
)
from integration.bench.report import Results
from integration.bench.workloads import WORKLOADS, Workload
from integration.checkpoints.configs import SIZES
from integration.harness.daemon import Daemon
from integration.harness.places import work_folder
from integration.harness.progress import progress
from integration.harness.runs import RunError

PARTS = ('times', 'restart', 'memory', 'storages', 'crowd', 'daemon')
QUICK_PARTS = ('times', 'memory', 'crowd', 'daemon')
# With --quick: the workloads of which a comparison with the other environments is promised, and all readers on one.
_QUICK = {
    **dict.fromkeys((PLAIN, OURS, UNPICKLER), 'all'), PLAIN_OLDER: 'a', OURS_OLDER: 'a', THEIRS: 'a c f',
    **dict.fromkeys(READERS, 'c'),
}  # fmt: skip
_NODE = 'overmind-fs, OVERMIND_DROP_SOURCES=1'


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m integration.bench', description=__doc__)
    letters = [workload.letter for workload in WORKLOADS]
    parser.add_argument('--quick', action='store_true', help='fewer processes, only the main opponents: 25 minutes')
    parser.add_argument('--only', default='', metavar='PARTS', help=f'of {",".join(PARTS)}')
    parser.add_argument('--workloads', default='', metavar='LETTERS', help=f'of {",".join(letters)}')
    names = [opponent.name for opponent in OPPONENTS]
    parser.add_argument('--opponents', default='', metavar='NAMES', help=f'of {",".join(names)}')
    parser.add_argument('--repeat', type=int, metavar='N', help='processes for each figure (default 5, quick 3)')
    parser.add_argument('--fills', type=int, metavar='N', help='first loads for each figure (default 5, quick 1)')
    parser.add_argument('--entries', type=int, metavar='N', help='of the daemon part (default 10,000, quick 1,000)')
    parser.add_argument('--size', choices=SIZES, default='true')
    parser.add_argument('--check', action='store_true', help='fail when a ratio is beyond the limit of promises.toml')
    default = work_folder() / 'results' / 'latest.json'
    parser.add_argument('-o', '--output', type=Path, default=default, metavar='FILE', help=f'default {default}')
    parser.add_argument('--png', type=Path, metavar='FILE', help='the picture; default: beside the output')
    args = parser.parse_args()
    args.parts = _chosen(parser, args.only, PARTS, QUICK_PARTS if args.quick else PARTS)
    wanted = _chosen(parser, args.workloads, letters, letters)
    args.opponents = _chosen(parser, args.opponents, names, names)
    args.chosen = [workload for workload in WORKLOADS if workload.letter in wanted]
    args.counts = Counts(
        runs=args.repeat or (3 if args.quick else 5),
        fills=args.fills or (1 if args.quick else args.repeat or 5),
        other_fills=1 if args.quick else args.fills or args.repeat or 5,
        slow_runs=1 if args.quick and not args.repeat else min(3, args.repeat or 3),
    )
    args.entries = args.entries or (daemon.QUICK if args.quick else daemon.MANY)
    args.processes = (1, 4) if args.quick else memory.PROCESSES
    return args


def _chosen(parser: argparse.ArgumentParser, text: str, known: Sequence[str], default: Sequence[str]) -> list[str]:
    if not text:
        return list(default)
    wanted = [word.strip() for word in text.split(',')]
    unknown = [word for word in wanted if word not in known]
    if unknown:
        parser.error(f'{", ".join(unknown)}: unknown; there are {", ".join(known)}')
    return wanted


def _opponents(args: argparse.Namespace, workload: Workload) -> list[list[Opponent]]:
    """The groups of a workload."""

    def wanted(opponent: Opponent) -> bool:
        quick = _QUICK[opponent]
        left_out = args.quick and quick != 'all' and workload.letter not in quick.split()
        return suits(workload, opponent) and not left_out and opponent.name in args.opponents

    return [[opponent for opponent in group if wanted(opponent)] for group in GROUPS]


def _times(args: argparse.Namespace, workload: Workload, kept: Mapping[str, Cache], results: Results) -> None:
    for group in _opponents(args, workload):
        if group:
            results.timings += measure(workload, group, kept, args.size, args.counts)
            for cache in kept.values():
                cache.close()


def _memory(args: argparse.Namespace, workload: Workload, kept: Mapping[str, Cache], idle: int) -> Footprints:
    """Of plain loading, the product and overmind-cache, one after the other."""
    found = {}
    chosen = [opponent for group in _opponents(args, workload) for opponent in group]
    for opponent in (PLAIN, OURS, THEIRS):
        if opponent not in chosen:
            continue
        cache = kept[opponent.cache] if opponent.cache else None
        try:
            filled = _fill(workload, opponent, cache, args.size)
            found[workload.letter, opponent.name] = [
                memory.footprint(workload, opponent, cache, args.size, count, filled, idle) for count in args.processes
            ]
        except RunError as error:
            print(f'memory of {workload.letter}, {opponent.name}: {str(error).splitlines()[-1]}', file=sys.stderr)
        if opponent is OURS and cache:
            _fill(workload, opponent, cache, args.size, drop=True)
            found[workload.letter, _NODE] = [memory.footprint(workload, opponent, cache, args.size, 1, filled, idle)]
        if cache:
            cache.close()
    return found


def _fill(workload: Workload, opponent: Opponent, cache: Cache | None, size: str, drop: bool = False) -> int:
    """Bytes of the weights."""
    with progress(f'{workload.letter}: {opponent.name}, a load for the memory table'):
        variables = {'OVERMIND_DROP_SOURCES': '1'} if drop else {}
        return int(fill(workload, opponent, cache, size, variables)['bytes'])


def _measure(args: argparse.Namespace, results: Results) -> None:
    first, idle = args.chosen[0], memory.meminfo('Shmem')
    for workload in args.chosen:
        with progress(f'{workload.letter}: the checkpoint (made once)'):
            workload.checkpoint(args.size)
    with (
        tempfile.TemporaryDirectory(prefix='overmind-bench-') as folder,
        # Packed files are as large as checkpoints, and there may be no room for these among temporary files.
        tempfile.TemporaryDirectory(prefix='packed-', dir=work_folder()) as scratch,
        Daemon(Path(folder, 'mnt')) as served,
    ):
        kept = caches(served.root, Path(scratch))
        try:
            if 'times' in args.parts:
                with progress('a copy between warm buffers'):
                    results.memcpy = copying.measure(args.size)
                for workload in args.chosen:
                    _times(args, workload, kept, results)
            if 'memory' in args.parts:
                results.footprints = _memory(args, first, kept, idle)
            _parts_that_need_an_entry(args, kept[OURS.cache], results)
        finally:
            for cache in kept.values():
                cache.close()
    if 'daemon' in args.parts:
        results.daemon = daemon.measure(daemon.FEW, args.entries, 0 if args.quick else daemon.LARGE)


def _parts_that_need_an_entry(args: argparse.Namespace, cache: Cache, results: Results) -> None:
    """Of the first workload, since they would say the same of others; a restart also where files are converted."""
    assert cache.root is not None
    for number, workload in enumerate(args.chosen):
        restarts = 'restart' in args.parts and workload.load == 'controlnets'
        others = number == 0 and {'storages', 'crowd'} & set(args.parts)
        if not restarts and not others:
            continue
        _fill(workload, OURS, cache, args.size)
        if restarts:
            results.restarts += restart.measure(workload, cache.root, args.size, args.counts.runs)
        if others and 'storages' in args.parts:
            with progress('a file for each storage, and for each component'):
                results.storages = storages.measure(cache.root)
        if others and 'crowd' in args.parts:
            other = next(one for one in WORKLOADS if one.files != workload.files and not one.slow)
            other.checkpoint(args.size)
            results.crowd = crowd.measure(workload, other, cache, args.size)
        cache.clear()


def main() -> int:
    args = arguments()
    results = Results(args.size, f'python -m integration.bench {shlex.join(sys.argv[1:])}'.strip())
    try:
        _measure(args, results)
    except BaseException:
        # An hour of measuring is not to be lost.
        report.write(args.output, report.as_json(results))
        print(f'written, as far as it was measured: {args.output}', file=sys.stderr)
        raise
    report.write(args.output, report.as_json(results))
    print(f'\n{report.text(results)}\n')
    if results.restarts:
        print(f'{restart.own_start()}\n')
    print(f'written: {args.output}')
    if results.timings:
        print(plot.draw(args.output, args.png or args.output.with_suffix('.png')))
    print(f'\n{promises.as_table(results.figures)}')
    problems = promises.broken(results.figures)
    for problem in problems:
        print(f'NOT REACHED: {problem}')
    return 1 if problems and args.check else 0


if __name__ == '__main__':
    sys.exit(main())
