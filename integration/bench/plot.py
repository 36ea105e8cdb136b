"""``python -m integration.bench.plot FIGURES.json PICTURE.png``: stacked bars, a panel for each workload.

It runs in the environment of ``make bench-env`` that has matplotlib.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from integration.bench.environments import TENSORS
from integration.harness.places import REPOSITORY

_STAGES = {'load': '#1f77b4', 'touch': '#ff9f40', 'prompt': '#2ca02c'}
_LABELS = {'load': 'load', 'touch': 'read a byte of every page', 'prompt': 'first prompt (tokenizer)'}
_COLUMNS = 2


def draw(figures: Path, picture: Path) -> str:
    """Draw it by a process in that environment; what became of it, in words."""
    if missing := TENSORS.missing():
        return f'no picture: {missing}'
    line = [str(TENSORS.python), '-m', 'integration.bench.plot', str(figures.resolve()), str(picture.resolve())]
    done = subprocess.run(line, env=TENSORS.variables(), cwd=REPOSITORY, capture_output=True, text=True)
    return f'no picture: {done.stderr.strip()[-500:]}' if done.returncode else f'written: {picture}'


def _seconds(value: float) -> str:
    return f'{value:.1f} s' if value >= 1 else f'{value * 1e3:.0f} ms' if value >= 0.01 else f'{value * 1e3:.1f} ms'


def _bar(axes: Any, row: float, timing: dict[str, Any]) -> float:
    """One opponent's stages after the imports; where the bar ends, in seconds."""
    left = 0.0
    for stage, colour in _STAGES.items():
        width = timing['stages'].get(stage, {}).get('median', 0.0)
        axes.barh(row, width, left=left, color=colour, height=0.55)
        left += width
    return left


def _panel(axes: Any, timings: list[dict[str, Any]], loads: dict[str, float | None]) -> None:
    ends = []
    for row, timing in enumerate(timings):
        ends.append(_bar(axes, row, timing) if timing['stages'] else 0.0)
    widest = max(ends) or 1.0
    for row, (timing, end) in enumerate(zip(timings, ends, strict=True)):
        note = _seconds(end) if timing['stages'] else f'failed: {timing["failure"][:60]}'
        if timing['fill']:
            note += f'   first load {_seconds(timing["fill"]["median"])}'
            if timing['opponent'] in loads:
                count = loads[timing['opponent']]
                note += f', pays after {count:.0f} loads' if count is not None else ', never pays'
        axes.text(end + widest * 0.01, row, note, va='center', fontsize=7)
    axes.set_yticks(range(len(timings)), [timing['opponent'] for timing in timings], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, widest * 1.75)
    axes.set_title(timings[0]['title'], fontsize=9, loc='left')
    axes.tick_params(axis='x', labelsize=7)
    axes.xaxis.set_major_formatter(lambda value, _: _seconds(value) if value else '0')
    for side in ('top', 'right'):
        axes.spines[side].set_visible(False)


def main() -> None:
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    found = json.loads(Path(sys.argv[1]).read_text())
    panels: dict[str, list[dict[str, Any]]] = {}
    for timing in found['timings']:
        panels.setdefault(timing['workload'], []).append(timing)
    loads: dict[str, dict[str, float | None]] = {}
    for one in found['amortisation']:
        loads.setdefault(one['workload'], {})[one['opponent']] = one['loads']
    rows = -(-len(panels) // _COLUMNS)
    most = max(len(timings) for timings in panels.values())
    height = rows * (0.55 + 0.22 * most) + 1
    figure, grid = pyplot.subplots(rows, _COLUMNS, figsize=(15, height), squeeze=False, layout='constrained')
    flat = [axes for line in grid for axes in line]
    for axes, (letter, timings) in zip(flat, panels.items(), strict=False):
        _panel(axes, timings, loads.get(letter, {}))
    for axes in flat[len(panels) :]:
        axes.set_visible(False)
    machine = found['machine']
    where = f'{machine["cpus"]} cores, {machine["memory"] / 2**30:.0f} GiB, Linux {machine["kernel"].partition("-")[0]}'
    versions = ', '.join(f'{name} {machine[name]}' for name in ('torch', 'transformers', 'diffusers'))
    figure.suptitle(
        'Seconds from the call to weights that were read once, without the imports (shorter is better)\n'
        f'{found["when"][:10]}, {where}, {versions}',
        fontsize=11,
    )
    handles = [Patch(color=colour, label=_LABELS[stage]) for stage, colour in _STAGES.items()]
    figure.legend(handles=handles, loc='outside lower center', ncols=len(handles), fontsize=9)
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == '__main__':
    main()
