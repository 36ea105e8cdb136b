"""The figures as tables for a terminal and as JSON."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from integration.bench import restart
from integration.bench.figures import Footprints, break_even, figures
from integration.bench.measure import STAGES, Summary, Timing
from integration.bench.memory import FIGURES, meminfo
from integration.bench.opponents import OURS, OURS_OLDER, PLAIN, PLAIN_OLDER, THEIRS
from integration.harness.table import megabytes, seconds, table


@dataclass
class Results:
    """Everything that one run measured."""

    size: str
    command: str
    timings: list[Timing] = field(default_factory=list)
    restarts: list[restart.Restart] = field(default_factory=list)
    footprints: Footprints = field(default_factory=dict)
    storages: dict[str, Any] = field(default_factory=dict)
    crowd: dict[str, Any] = field(default_factory=dict)
    daemon: dict[str, Any] = field(default_factory=dict)
    memcpy: float | None = None  # seconds a byte

    @property
    def figures(self) -> dict[str, float]:
        return figures(self.timings, self.restarts, self.footprints, self.crowd, self.daemon, self.memcpy)


def _cell(summary: Summary | None) -> str:
    return f'{seconds(summary.median)} ({seconds(summary.least)} - {seconds(summary.most)})' if summary else '-'


def _memory_cell(summary: Summary | None) -> str:
    return megabytes(summary.median) if summary else '-'


def timings_table(timings: Sequence[Timing]) -> str:
    """One row for each opponent; one that failed has its reason below the table."""
    rows, notes = [], []
    for timing in timings:
        row = [timing.workload.letter, timing.opponent.name]
        if timing.failure:
            row[1] += ' *'
            notes.append(f'* {timing.workload.letter}, {timing.opponent.name}: {timing.failure}')
        stages = [_cell(timing.stage(name)) for name in STAGES]
        memory = [_memory_cell(timing.memory(what)) for what in ('peak', 'pss')]
        rows.append([*row, _cell(timing.fill()), _cell(timing.kept()), *stages, _cell(timing.whole()), *memory])
    heads = ['median (least - most)', '', 'first load', 'cached after', *STAGES, 'start to loaded', 'peak RSS', 'PSS']
    titles = dict.fromkeys(timing.workload.title for timing in timings)
    return '\n'.join([*titles, '', table(heads, rows), *notes])


def parts_table(timings: Sequence[Timing]) -> str:
    rows = [
        [timing.workload.letter, timing.opponent.name, part, _cell(summary)]
        for timing in timings
        for part, summary in timing.parts().items()
    ]
    return table(['what a hit is made of', '', '', 'over all loads of a process'], rows)


def _break_even(timings: Sequence[Timing]) -> list[tuple[Timing, float | None]]:
    found = {(timing.workload.letter, timing.opponent): timing for timing in timings if timing.runs}
    plain_of = {OURS: PLAIN, OURS_OLDER: PLAIN_OLDER, THEIRS: PLAIN_OLDER}
    pairs = [
        (found.get((t.workload.letter, plain_of[t.opponent])), t) for t in found.values() if t.opponent in plain_of
    ]
    return [(ours, break_even(plain, ours)) for plain, ours in pairs if plain and ours.fills]


def amortisation_table(timings: Sequence[Timing]) -> str:
    rows = []
    for timing, loads in _break_even(timings):
        verdict = f'{loads:,.1f} loads' if loads is not None else 'never: use plain loading'
        rows.append([timing.workload.letter, timing.opponent.name, verdict])
    return table(['the first load has paid for itself after', '', ''], rows)


def memory_table(footprints: Footprints) -> str:
    counts = sorted({one.processes for measured in footprints.values() for one in measured})
    rows = []
    for (workload, opponent), measured in footprints.items():
        by_count = {one.processes: one for one in measured}
        for what in FIGURES:
            values = [getattr(by_count.get(count), what, None) for count in counts]
            rows.append([workload, opponent, what, *('-' if value is None else megabytes(value) for value in values)])
    return table(['memory of all processes', '', '', *(f'N={count}' for count in counts)], rows)


def crowd_text(crowd: Mapping[str, Any]) -> str:
    count = crowd['processes']
    return (
        f'one hit takes {seconds(crowd["alone"])} of CPU time, {count} at once {seconds(crowd["together"])} '
        f'and {seconds(crowd["wall"])} of the clock; while another pipeline fills {seconds(crowd["filling"])} and '
        f'{seconds(crowd["wall_filling"])}'
    )


def daemon_text(daemon: Mapping[str, Any]) -> str:
    large = (
        f'{megabytes(daemon["rss_large"])} with {daemon["large_bytes"] / 1e9:.0f} GB, ' if 'rss_large' in daemon else ''
    )
    few, many = (f'{daemon[name] * 1e6:.0f} us' for name in ('open_few', 'open_many'))
    return (
        f'the daemon: {megabytes(daemon["rss_many"])} with {daemon["entries"]:,} entries '
        f'({megabytes(daemon["rss_filled"])} just after the fills), {large}'
        f'{seconds(daemon["idle"])} of CPU time in 5 idle seconds; '
        f'opening by id {few} with {daemon["few"]} entries and {many} with {daemon["entries"]:,}; '
        f'ls {seconds(daemon["ls"])}'
    )


def text(results: Results) -> str:
    """All tables of what was measured."""
    blocks = []
    if results.timings:
        blocks += [timings_table(results.timings), parts_table(results.timings), amortisation_table(results.timings)]
    if results.memcpy:
        blocks.append(f'a copy between warm buffers: {results.memcpy * 1e9:.2f} s a GB')
    if results.restarts:
        blocks.append(restart.as_table(results.restarts))
    if results.footprints:
        blocks.append(memory_table(results.footprints))
    if results.storages:
        ways = [
            f'{one["files"]:,} files of {name}/ {seconds(one["seconds"])}' for name, one in results.storages.items()
        ]
        blocks.append(f'opening and mapping: {", ".join(ways)}')
    if results.crowd:
        blocks.append(crowd_text(results.crowd))
    if results.daemon:
        blocks.append(daemon_text(results.daemon))
    return '\n\n'.join(blocks)


def _machine() -> dict[str, Any]:
    packages = ('torch', 'diffusers', 'transformers', 'safetensors')
    return {
        'kernel': platform.release(),
        'cpus': os.cpu_count(),
        'memory': meminfo('MemTotal'),
        'python': platform.python_version(),
        **{name: version(name) for name in packages},
    }


def _timing(timing: Timing) -> dict[str, Any]:
    stages = {name: asdict(summary) for name in STAGES if (summary := timing.stage(name)) is not None}
    keys = ('seconds', 'whole', 'before', 'after', 'cpu')
    return {
        'workload': timing.workload.letter,
        'title': timing.workload.title,
        'opponent': timing.opponent.name,
        'environment': timing.opponent.environment.name,
        'failure': timing.failure,
        'stages': stages,
        'fill': (summary := timing.fill()) and asdict(summary),
        'kept': (summary := timing.kept()) and asdict(summary),
        'whole': (summary := timing.whole()) and asdict(summary),
        'peak': (summary := timing.memory('peak')) and asdict(summary),
        'pss': (summary := timing.memory('pss')) and asdict(summary),
        'parts': {name: asdict(summary) for name, summary in timing.parts().items()},
        'fills': [{'seconds': run['seconds'], 'loads': run.get('stats', {}).get('loads')} for run in timing.fills],
        'runs': [{name: run[name] for name in keys if name in run} for run in timing.runs],
    }


def as_json(results: Results) -> dict[str, Any]:
    return {
        'when': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
        'command': results.command,
        'size': results.size,
        'machine': _machine(),
        'timings': [_timing(timing) for timing in results.timings],
        'amortisation': [
            {'workload': timing.workload.letter, 'opponent': timing.opponent.name, 'loads': loads}
            for timing, loads in _break_even(results.timings)
        ],
        'restarts': [{**asdict(one), **asdict(one.summary)} for one in results.restarts],
        'memory': [
            {'workload': workload, 'opponent': opponent, 'footprints': [asdict(one) for one in measured]}
            for (workload, opponent), measured in results.footprints.items()
        ],
        'storages': results.storages,
        'crowd': results.crowd,
        'daemon': results.daemon,
        'memcpy': results.memcpy,
        'figures': results.figures,
    }


def write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1))
