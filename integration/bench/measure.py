"""Loads in new processes, the opponents in turn, so that whatever else the machine does meets all of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.bench.opponents import Opponent
from integration.bench.workloads import Workload
from integration.harness.daemon import command
from integration.harness.progress import progress
from integration.harness.runs import RunError, run

STAGES = ('import', 'patch', 'load', 'touch', 'prompt')


@dataclass(frozen=True)
class Summary:
    """Seconds of one stage over several processes."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Summary:
        return Summary(statistics.median(values), min(values), max(values))


@dataclass
class Timing:
    """One workload by one opponent."""

    workload: Workload
    opponent: Opponent
    fill: dict[str, Any] | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)

    def stage(self, name: str) -> Summary | None:
        values = [result['seconds'][name] for result in self.runs if name in result['seconds']]
        return Summary.of(values) if values else None

    def parts(self) -> dict[str, Summary]:
        """What the cache says its hits were made of, summed over the loads of a process."""
        sums: list[dict[str, float]] = []
        for result in self.runs:
            total: dict[str, float] = {}
            for load in result.get('stats', {}).get('loads', ()):
                for part, seconds in load['seconds'].items():
                    total[part] = total.get(part, 0) + seconds
            sums.append(total)
        names = {part: None for total in sums for part in total}
        return {part: Summary.of([total.get(part, 0) for total in sums]) for part in names}


def warm(folder: Path) -> None:
    """Read every file of a checkpoint, so that the page cache has it where there is room."""
    buffer = bytearray(1 << 24)
    for path in sorted(folder.rglob('*')):
        if path.is_file():
            with path.open('rb', buffering=0) as file:
                while file.readinto(buffer):
                    pass


def evict_all(root: Path) -> None:
    for entry in sorted((root / 'pipelines').iterdir()):
        command('evict', entry.name, root=root)


def _must_be(result: dict[str, Any], outcome: str) -> None:
    wrong = [load for load in result['stats']['loads'] if load['outcome'] != outcome]
    if wrong:
        raise RunError(f'expected only outcomes {outcome}, got {wrong}')


def measure(workload: Workload, opponents: Iterable[Opponent], root: Path, size: str, repeat: int) -> list[Timing]:
    """Fill once for each opponent that has to, then ``repeat`` processes each, in turn."""
    arguments = workload.arguments(size)
    with progress(f'{workload.name}: reading the files into the page cache'):
        warm(workload.checkpoint(size))
    timings = [Timing(workload, opponent) for opponent in opponents]
    for timing in timings:
        if timing.opponent.fills:
            with progress(f'{workload.name}: {timing.opponent.name}, fill'):
                timing.fill = run(*arguments, *timing.opponent.options, env=timing.opponent.environment(root))
            _must_be(timing.fill, 'miss')
    for number in range(repeat):
        for timing in timings:
            with progress(f'{workload.name}: {timing.opponent.name}, process {number + 1} of {repeat}'):
                result = run(*arguments, *timing.opponent.options, env=timing.opponent.environment(root))
            if timing.opponent.fills:
                _must_be(result, 'hit')
            timing.runs.append(result)
    return timings
