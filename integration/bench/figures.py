"""The ratios that are promised, each by a name: ``promises.toml`` says what they have to be."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from integration.bench import restart
from integration.bench.daemon import MANY
from integration.bench.measure import Timing
from integration.bench.memory import Footprint
from integration.bench.opponents import OURS, OURS_OLDER, PLAIN, PLAIN_OLDER, THEIRS, UNPICKLER, Opponent

Footprints = Mapping[tuple[str, str], Sequence[Footprint]]


class Timings:
    """Medians, by workload and opponent."""

    def __init__(self, timings: Sequence[Timing]) -> None:
        self._found = {(timing.workload.letter, timing.opponent): timing for timing in timings if not timing.failure}
        self.letters = list(dict.fromkeys(timing.workload.letter for timing in timings))

    def find(self, letter: str, opponent: Opponent) -> Timing | None:
        return self._found.get((letter, opponent))

    def stage(self, letter: str, opponent: Opponent, name: str) -> float | None:
        timing = self.find(letter, opponent)
        summary = timing.stage(name) if timing else None
        return summary.median if summary else None

    def fill(self, letter: str, opponent: Opponent) -> float | None:
        timing = self.find(letter, opponent)
        summary = timing.fill() if timing else None
        return summary.median if summary else None


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _of_workload(timings: Timings, letter: str, memcpy: float | None) -> dict[str, float | None]:
    def faster(stage: str, slow: Opponent, fast: Opponent) -> float | None:
        return _ratio(timings.stage(letter, slow, stage), timings.stage(letter, fast, stage))

    ours, theirs = timings.find(letter, OURS), timings.find(letter, PLAIN)
    plain, filled = _beside_fills(ours, theirs), timings.fill(letter, OURS)
    figures = {
        'rebuild.plain': faster('load', PLAIN, OURS),
        'rebuild.plain-older': faster('load', PLAIN_OLDER, OURS_OLDER),
        'rebuild.overmind-cache': faster('load', THEIRS, OURS),
        'rebuild.overmind-cache-older': faster('load', THEIRS, OURS_OLDER),
        'rebuild.unpickler': faster('load', OURS, UNPICKLER),  # times what it takes
        'touch.plain': faster('touch', PLAIN, OURS),
        'touch.overmind-cache': faster('touch', THEIRS, OURS_OLDER),  # of the same rounds
        'fill.plain': _ratio(filled, plain),
        'fill.overmind-cache': _ratio(timings.fill(letter, THEIRS), filled),
    }
    if ours and filled is not None and plain is not None and memcpy:
        nbytes = ours.runs[-1]['bytes']
        figures['fill.copies'] = max(0.0, filled - plain) / (memcpy * nbytes)
    if ours and ours.runs:
        parts = {name: summary.median for name, summary in ours.parts().items()}
        figures['rebuild.floor'] = _ratio(
            timings.stage(letter, OURS, 'load'), parts.get('map', 0) + parts.get('rebuild', 0)
        )
        figures['huge'] = statistics.median(run['after']['huge'] / run['bytes'] for run in ours.runs)
    if ours and theirs and ours.fills and theirs.runs:
        nbytes = ours.runs[-1]['bytes']
        most = max(_peak(run, nbytes) for run in ours.fills)
        allowed = statistics.median(run['after']['peak'] for run in theirs.runs) + nbytes
        figures['fill.peak'] = most / allowed
    return figures


def _beside_fills(ours: Timing | None, theirs: Timing | None) -> float | None:
    """A plain load in the rounds that had a first load, too: these take memory that later rounds find warm."""
    if not ours or not theirs or not ours.fills or not theirs.runs:
        return None
    return float(statistics.median(run['seconds']['load'] for run in theirs.runs[: len(ours.fills)]))


def _peak(fill: Mapping[str, Any], nbytes: int) -> int:
    """Most memory of a filler. The arenas of a copier come after the load, to what the program has then."""
    after: Mapping[str, int] = fill['after']
    forked = any('fork' in load['seconds'] for load in fill.get('stats', {}).get('loads', ()))
    return max(after['peak'], after['rss'] + nbytes) if forked else after['peak']


def _patch(timings: Timings) -> dict[str, float | None]:
    found = [timing for letter in timings.letters if (timing := timings.find(letter, OURS)) and timing.runs]
    seconds = [summary.median for timing in found if (summary := timing.stage('patch'))]
    imported = {name for timing in found for run in timing.runs for name in run.get('imported', ())}
    return {
        'patch.ms': max(seconds) * 1e3 if seconds else None,
        'patch.imports': float(len(imported)) if found else None,
    }


def _memory(footprints: Footprints) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for (letter, opponent), measured in footprints.items():
        known = [one for one in measured if one.pss is not None]
        if opponent != OURS.name or not known:
            continue
        figures[f'{letter}.memory.copies'] = max((one.pss or 0) / one.weights for one in known)
        figures[f'{letter}.memory.private-mb'] = max((one.anonymous or 0) / one.processes for one in known) / 1e6
    return figures


def _crowd(crowd: Mapping[str, Any]) -> dict[str, float | None]:
    if not crowd:
        return {}
    cores = len(os.sched_getaffinity(0))
    return {
        'crowd.cpu': crowd['together'] / (crowd['processes'] * crowd['alone']),
        # A filler may have one core of those that the others would have.
        'crowd.filling': crowd['wall_filling'] / crowd['wall'] / (cores / (cores - 1) if cores > 1 else 2),
    }


def _daemon(daemon: Mapping[str, Any]) -> dict[str, float | None]:
    if not daemon:
        return {}
    figures = {
        'daemon.rss-large-mb': daemon['rss_large'] / 1e6 if 'rss_large' in daemon else None,
        'daemon.idle-ms': daemon['idle'] * 1e3,
    }
    if daemon['entries'] >= MANY:  # fewer would keep the promise, and not have been asked
        figures['daemon.rss-many-mb'] = daemon['rss_many'] / 1e6
        figures['daemon.open'] = daemon['open_many'] / daemon['open_few']
        figures['daemon.ls-seconds'] = daemon['ls']
    return figures


def figures(
    timings: Sequence[Timing],
    restarts: Sequence[restart.Restart],
    footprints: Footprints,
    crowd: Mapping[str, Any],
    daemon: Mapping[str, Any],
    memcpy: float | None,
) -> dict[str, float]:
    """All that were measured. ``memcpy`` is in seconds a byte."""
    known = Timings(timings)
    found: dict[str, float | None] = {}
    for letter in known.letters:
        found.update({f'{letter}.{name}': value for name, value in _of_workload(known, letter, memcpy).items()})
    found.update(_patch(known))
    found.update(_memory(footprints))
    found.update(_crowd(crowd))
    found.update(_daemon(daemon))
    ways = {restart.COLD.name: 'plain', restart.CACHED.name: 'overmind-fs'}
    found.update({f'{letter}.run.{ways[way]}': ratio for (letter, way), ratio in restart.ratios(restarts).items()})
    return {name: value for name, value in found.items() if value is not None}


def break_even(plain: Timing, ours: Timing) -> float | None:
    """After how many loads the fill has paid for itself, everything after the imports counted; None: never.

    What the fill goes on with while the program has its object already counts as if the program had waited for it.
    """
    each, kept, filled = plain.use(), ours.use(), ours.kept()
    if each is None or kept is None or filled is None or each <= kept:
        return None
    # The first use costs what the fill costs, and what comes after any load.
    after = kept - (summary.median if (summary := ours.stage('load')) else 0)
    return max(1.0, (filled.median + after - kept) / (each - kept))
