"""The figures as tables, as JSON, and against what was promised."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from integration.bench.measure import STAGES, Summary, Timing
from integration.bench.memory import FIGURES, Footprint
from integration.bench.opponents import OURS, PLAIN
from integration.bench.restart import Restart
from integration.harness.table import megabytes, seconds, table

Footprints = dict[tuple[str, str], list[Footprint]]


def _cell(summary: Summary | None) -> str:
    return f'{seconds(summary.median)} ({seconds(summary.least)} - {seconds(summary.most)})' if summary else '-'


def timings_table(timings: Sequence[Timing]) -> str:
    rows = []
    for timing in timings:
        fill = seconds(timing.fill['seconds']['load']) if timing.fill else '-'
        rows.append([timing.workload.name, timing.opponent.name, fill, *(_cell(timing.stage(name)) for name in STAGES)])
    return table(['median (least - most)', '', 'fill', *STAGES], rows)


def parts_table(timings: Sequence[Timing]) -> str:
    rows = [
        [timing.workload.name, part, _cell(summary)] for timing in timings for part, summary in timing.parts().items()
    ]
    return table(['what a hit is made of', '', 'seconds, over all loads of a process'], rows)


def memory_table(footprints: Footprints) -> str:
    rows = []
    for (workload, opponent), measured in footprints.items():
        for what in FIGURES:
            values = [getattr(one, what) for one in measured]
            rows.append([workload, opponent, what, *('-' if value is None else megabytes(value) for value in values)])
    counts = next(iter(footprints.values()), [])
    return table(['memory of all processes', '', '', *(f'N={one.processes}' for one in counts)], rows)


def ratios(timings: Sequence[Timing]) -> dict[str, float]:
    """How many times faster a hit is than a plain load, by workload: medians of the load stage."""
    medians: dict[tuple[str, str], float] = {}
    for timing in timings:
        if (summary := timing.stage('load')) is not None:
            medians[timing.workload.name, timing.opponent.name] = summary.median
    names = {timing.workload.name: None for timing in timings}
    return {name: medians[name, PLAIN.name] / medians[name, OURS.name] for name in names}


def broken(timings: Sequence[Timing]) -> list[str]:
    """The promises that were not kept."""
    promised = {timing.workload.name: timing.workload.promised for timing in timings}
    return [
        f'{name}: {ratio:.1f} times faster, promised {promised[name]:.0f}'
        for name, ratio in ratios(timings).items()
        if ratio < promised[name]
    ]


def _machine() -> dict[str, Any]:
    packages = ('torch', 'diffusers', 'transformers', 'safetensors')
    return {
        'kernel': platform.release(),
        'cpus': os.cpu_count(),
        'python': platform.python_version(),
        **{name: version(name) for name in packages},
    }


def as_json(
    timings: Sequence[Timing],
    restarts: Sequence[Restart],
    footprints: Footprints,
    storages: dict[str, Any],
    size: str,
) -> dict[str, Any]:
    measured = []
    for timing in timings:
        stages = {name: asdict(summary) for name in STAGES if (summary := timing.stage(name)) is not None}
        parts = {name: asdict(summary) for name, summary in timing.parts().items()}
        raw = [{name: result[name] for name in ('seconds', 'before', 'after')} for result in timing.runs]
        fill = timing.fill and {'seconds': timing.fill['seconds'], 'loads': timing.fill['stats']['loads']}
        names = {'workload': timing.workload.name, 'opponent': timing.opponent.name}
        measured.append({**names, 'stages': stages, 'parts': parts, 'fill': fill, 'runs': raw})
    return {
        'when': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
        'size': size,
        'machine': _machine(),
        'timings': measured,
        'ratios': ratios(timings),
        'restarts': [{**asdict(one), **asdict(one.summary)} for one in restarts],
        'memory': [
            {'workload': workload, 'opponent': opponent, 'footprints': [asdict(one) for one in measured]}
            for (workload, opponent), measured in footprints.items()
        ],
        'storages': storages,
    }


def write(path: Path, figures: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1))
