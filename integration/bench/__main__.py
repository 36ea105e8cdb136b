"""``python -m integration.bench``: measure, print tables, write the figures to a file."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from integration.bench import memory, report, restart, storages
from integration.bench.measure import Timing, evict_all, measure
from integration.bench.opponents import OPPONENTS
from integration.bench.workloads import WORKLOADS
from integration.checkpoints.configs import SIZES
from integration.harness.daemon import Daemon
from integration.harness.places import work_folder
from integration.harness.progress import progress
from integration.harness.table import seconds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m integration.bench', description=__doc__)
    parser.add_argument('--repeat', type=int, default=5, metavar='N', help='processes for each figure (default 5)')
    parser.add_argument('--size', choices=SIZES, default='true')
    parser.add_argument('--only', default='', metavar='TEXT', help='only workloads whose name contains it')
    parser.add_argument('--no-memory', action='store_true', help='leave out the memory of several processes at once')
    parser.add_argument('--no-restart', action='store_true', help='leave out the restarts of a program')
    parser.add_argument('--check', action='store_true', help='fail when a promised ratio is not reached')
    default = work_folder() / 'results' / 'latest.json'
    parser.add_argument('-o', '--output', type=Path, default=default, metavar='FILE', help=f'default {default}')
    return parser.parse_args()


def main() -> int:
    args = arguments()
    chosen = [workload for workload in WORKLOADS if args.only in workload.name]
    if not chosen:
        sys.exit(f'no workload has {args.only!r} in its name: {", ".join(workload.name for workload in WORKLOADS)}')
    for workload in chosen:
        with progress(f'{workload.name}: the checkpoint (made once)'):
            workload.checkpoint(args.size)
    timings: list[Timing] = []
    restarts: list[restart.Restart] = []
    footprints: report.Footprints = {}
    files: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix='overmind-bench-') as folder, Daemon(Path(folder, 'mnt')) as daemon:
        for workload in chosen:
            evict_all(daemon.root)
            timings += measure(workload, OPPONENTS, daemon.root, args.size, args.repeat)
            if not args.no_restart:
                restarts += restart.measure(workload, daemon.root, args.size, args.repeat)
            nbytes = timings[-1].runs[-1]['bytes']
            for opponent in () if args.no_memory else OPPONENTS:
                footprints[workload.name, opponent.name] = [
                    memory.footprint(workload, opponent, daemon.root, args.size, count, nbytes)
                    for count in memory.PROCESSES
                ]
        with progress('a file for each storage, and for each component'):
            files = storages.measure(daemon.root)
    print(f'\n{report.timings_table(timings)}\n\n{report.parts_table(timings)}')
    if restarts:
        print(f'\n{restart.as_table(restarts)}')
        print(f'\n{restart.own_start()}')
    if footprints:
        print(f'\n{report.memory_table(footprints)}')
    ways = ', '.join(f'{one["files"]:,} files of {name}/ {seconds(one["seconds"])}' for name, one in files.items())
    print(f'\nopening and mapping: {ways}')
    for name, ratio in report.ratios(timings).items():
        print(f'{name}: a hit is {ratio:.1f} times faster than a plain load')
    report.write(args.output, report.as_json(timings, restarts, footprints, files, args.size))
    print(f'written: {args.output}')
    problems = [*report.broken(timings), *restart.broken(restarts)]
    for problem in problems:
        print(f'NOT REACHED: {problem}')
    return 1 if problems and args.check else 0


if __name__ == '__main__':
    sys.exit(main())
