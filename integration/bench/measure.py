"""Loads in new processes, the opponents in turn, so that whatever else the machine does meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.bench.caches import Cache, Packed
from integration.bench.environments import CURRENT
from integration.bench.opponents import OURS, UNPICKLER, Opponent
from integration.bench.workloads import Workload
from integration.checkpoints import build
from integration.harness.places import REPOSITORY, checkpoint_folder
from integration.harness.progress import progress
from integration.harness.runs import RunError, run_line

SUBJECT = str(REPOSITORY / 'integration' / 'bench' / 'subject.py')
STAGES = ('import', 'patch', 'load', 'touch', 'prompt')
_TIMEOUT = 900.0


@dataclass(frozen=True)
class Summary:
    """One figure over several processes."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Summary:
        return Summary(statistics.median(values), min(values), max(values))


@dataclass
class Timing:
    """One workload by one opponent; ``failure`` says why there is no more of it."""

    workload: Workload
    opponent: Opponent
    fills: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ''

    def stage(self, name: str) -> Summary | None:
        return _summary([result['seconds'][name] for result in self.runs if name in result['seconds']])

    def fill(self) -> Summary | None:
        """Of the load that fills, or the conversion."""
        return _summary([result['seconds']['load'] for result in self.fills])

    def kept(self) -> Summary | None:
        """Of the same load: until the next process finds its entry."""
        return _summary([result.get('kept', result['seconds']['load']) for result in self.fills])

    def whole(self) -> Summary | None:
        """From the start of the process until the weights are there."""
        return _summary([result['whole'] for result in self.runs])

    def memory(self, what: str) -> Summary | None:
        return _summary([result['after'][what] for result in self.runs])

    def use(self) -> float | None:
        """Seconds of everything that comes after the imports and the patch: medians of load, touch, first prompt."""
        found = [summary.median for name in ('load', 'touch', 'prompt') if (summary := self.stage(name))]
        return sum(found) if found else None

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


def _summary(values: list[float]) -> Summary | None:
    return Summary.of(values) if values else None


def warm(folder: Path) -> None:
    """Read every file of a checkpoint, so that the page cache has it where there is room."""
    buffer = bytearray(1 << 24)
    for path in sorted(folder.rglob('*')):
        if path.is_file():
            with path.open('rb', buffering=0) as file:
                while file.readinto(buffer):
                    pass


def _folder(workload: Workload, opponent: Opponent, size: str) -> Path:
    """What is read, made if it is not there. Readers of the pickle have another folder than the workload."""
    kind = workload.tensors.split()[-1] if opponent.pickled else workload.files
    return build(checkpoint_folder(size, kind), size, kind)


def line(workload: Workload, opponent: Opponent, folder: Path) -> list[str]:
    """The command line of one process under test."""
    what = opponent.reader or workload.load
    options = ['--cache'] if opponent.patches else []
    return [str(opponent.environment.python), SUBJECT, what, str(folder), '--dtype', workload.dtype, *options]


def suits(workload: Workload, opponent: Opponent) -> bool:
    """Readers of files are for workloads whose tensors they can read; the names in the files of (a) are not unique."""
    if opponent is UNPICKLER:
        return workload.lazy  # the other graphs are one of these, or have tensors of bitsandbytes
    if not opponent.reader:
        return workload.compared or opponent.environment is CURRENT
    kinds = workload.tensors.split()
    return len(kinds) == 2 or (len(kinds) == 1 and not opponent.pickled and not opponent.cache)


def run(
    words: list[str], opponent: Opponent, root: Path | None, more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """One process to its end."""
    started = time.clock_gettime(time.CLOCK_MONOTONIC)
    result = run_line(words, {**opponent.environment.variables(root), **(more or {})}, _TIMEOUT)
    if 'ready_at' in result:
        result['whole'] = result['ready_at'] - started
    return result


def _must_be(result: dict[str, Any], outcome: str) -> None:
    wrong = [load for load in result.get('stats', {}).get('loads', ()) if load['outcome'] != outcome]
    if wrong:
        raise RunError(f'expected only outcomes {outcome}, got {wrong[0]["outcome"]}: {wrong[0]["reason"]}')


def fill(
    workload: Workload, opponent: Opponent, cache: Cache | None, size: str, more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Empty the cache, and one process that fills it; a plain load where there is none."""
    if cache:
        cache.clear()
    folder = _folder(workload, opponent, size)
    words = line(workload, opponent, folder)
    if isinstance(cache, Packed):
        words = [words[0], *cache.converter(workload.load, folder, workload.dtype)]
    result = run(words, opponent, cache.root if cache else None, more)
    _must_be(result, 'miss')
    return result


def once(workload: Workload, opponent: Opponent, cache: Cache | None, size: str) -> dict[str, Any]:
    """One process, which finds its cache filled."""
    folder = cache.folder if isinstance(cache, Packed) else _folder(workload, opponent, size)
    result = run(line(workload, opponent, folder), opponent, cache.root if cache else None)
    if cache:
        _must_be(result, 'hit')
    return result


@dataclass(frozen=True)
class Counts:
    """How many processes: of those that only load, and of those that fill first."""

    runs: int
    fills: int
    slow_runs: int
    other_fills: int  # of other caches, of which one takes minutes

    def of(self, workload: Workload, opponent: Opponent) -> tuple[int, int]:
        fills = self.fills if opponent.cache == OURS.cache else self.other_fills
        if not workload.slow:
            return self.runs, fills
        # Three of those that take half a minute; a hit does not.
        return (self.runs if opponent.cache else self.slow_runs), min(fills, self.slow_runs)


def measure(
    workload: Workload, opponents: Iterable[Opponent], caches: Mapping[str, Cache], size: str, counts: Counts
) -> list[Timing]:
    """All of them once, then again, as often as they are to be measured; each fills before it loads."""
    timings = [Timing(workload, opponent, failure=opponent.environment.missing()) for opponent in opponents]
    for folder in {_folder(workload, timing.opponent, size) for timing in timings}:
        with progress(f'{workload.letter}: reading {folder.name} into the page cache'):
            warm(folder)
    for number in range(counts.runs):
        for timing in timings:
            _round(timing, number, caches, size, counts)
    return timings


def _round(timing: Timing, number: int, caches: Mapping[str, Cache], size: str, counts: Counts) -> None:
    workload, opponent = timing.workload, timing.opponent
    cache = caches[opponent.cache] if opponent.cache else None
    runs, fills = counts.of(workload, opponent)
    if timing.failure or number >= runs:
        return
    name = f'{workload.letter}: {opponent.name}'
    try:
        if cache and number < fills:
            with progress(f'{name}, fill {number + 1} of {fills}'):
                timing.fills.append(fill(workload, opponent, cache, size))
        with progress(f'{name}, process {number + 1} of {runs}'):
            timing.runs.append(once(workload, opponent, cache, size))
    except RunError as error:
        timing.failure = str(error).strip().splitlines()[-1]
