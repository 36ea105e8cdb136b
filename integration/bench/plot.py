"""``python -m integration.bench.plot FIGURES.json PICTURE.png``: stacked bars, a row of panels for each workload: what
follows the imports, and the whole process.

It runs in the environment of ``make bench-env`` that has matplotlib.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from integration.bench.environments import TENSORS
from integration.bench.opponents import UNPICKLER
from integration.harness.places import REPOSITORY

_COLOURS = {'import': '#c7c7c7', 'patch': '#8c564b', 'load': '#1f77b4', 'touch': '#ff9f40', 'prompt': '#2ca02c'}
_LABELS = {
    'import': 'import of the libraries',
    'patch': 'monkey_patch_all()',
    'load': 'load',
    'touch': 'read a byte of every page',
    'prompt': 'first prompt (tokenizer)',
}
_STAGES = ('load', 'touch', 'prompt')
_WHOLE = tuple(_COLOURS)


def draw(figures: Path, picture: Path) -> str:
    """Draw it by a process in that environment; what became of it, in words."""
    if missing := TENSORS.missing():
        return f'no picture: {missing}'
    line = [str(TENSORS.python), '-m', 'integration.bench.plot', str(figures.resolve()), str(picture.resolve())]
    done = subprocess.run(line, env=TENSORS.variables(), cwd=REPOSITORY, capture_output=True, text=True)
    return f'no picture: {done.stderr.strip()[-500:]}' if done.returncode else f'written: {picture}'


def _seconds(value: float) -> str:
    return f'{value:.1f} s' if value >= 1 else f'{value * 1e3:.0f} ms' if value >= 0.01 else f'{value * 1e3:.1f} ms'


def _bar(axes: Any, row: float, timing: dict[str, Any], stages: tuple[str, ...]) -> float:
    """Stages of one opponent; where the bar ends, in seconds."""
    left = 0.0
    for stage in stages:
        width = timing['stages'].get(stage, {}).get('median', 0.0)
        axes.barh(row, width, left=left, color=_COLOURS[stage], height=0.55)
        left += width
    return left


def _panel(
    axes: Any, timings: list[dict[str, Any]], stages: tuple[str, ...], loads: dict[str, float | None] | None
) -> None:
    """With loads, also how long the first one takes and when it has paid for itself."""
    ends = []
    for row, timing in enumerate(timings):
        ends.append(_bar(axes, row, timing, stages) if timing['stages'] else 0.0)
    widest = max(ends) or 1.0
    for row, (timing, end) in enumerate(zip(timings, ends, strict=True)):
        note = _seconds(end) if timing['stages'] else f'failed: {timing["failure"][:60]}'
        if timing['fill'] and loads is not None:
            first, kept = timing['fill']['median'], timing['kept']['median']
            note += f'   first load {_seconds(first)}'
            note += f' (cached after {_seconds(kept)})' if kept > first else ''
            if timing['opponent'] in loads:
                count = loads[timing['opponent']]
                note += f', pays after {count:.0f} loads' if count is not None else ', never pays'
        axes.text(end + widest * 0.01, row, note, va='center', fontsize=7)
    axes.set_yticks(range(len(timings)), [timing['opponent'] for timing in timings], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, widest * (1.75 if loads is not None else 1.2))
    title = timings[0]['title'] if loads is not None else f'{timings[0]["workload"]}: the whole process'
    axes.set_title(title, fontsize=9, loc='left')
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
        if timing['opponent'] == UNPICKLER.name:
            continue  # it has no weights to touch
        panels.setdefault(timing['workload'], []).append(timing)
    loads: dict[str, dict[str, float | None]] = {}
    for one in found['amortisation']:
        loads.setdefault(one['workload'], {})[one['opponent']] = one['loads']
    lines = [len(timings) for timings in panels.values()]
    height = sum(0.55 + 0.22 * count for count in lines) + 1
    figure, grid = pyplot.subplots(
        len(panels),
        2,
        figsize=(16, height),
        squeeze=False,
        layout='constrained',
        gridspec_kw={'height_ratios': [count + 1.5 for count in lines], 'width_ratios': [3, 2]},
    )
    for (left, right), (letter, timings) in zip(grid, panels.items(), strict=True):
        _panel(left, timings, _STAGES, loads.get(letter, {}))
        _panel(right, timings, _WHOLE, None)
    machine = found['machine']
    where = f'{machine["cpus"]} cores, {machine["memory"] / 2**30:.0f} GiB, Linux {machine["kernel"].partition("-")[0]}'
    versions = ', '.join(f'{name} {machine[name]}' for name in ('torch', 'transformers', 'diffusers'))
    figure.suptitle(
        'From the call to weights that were read once; right: with the imports, from the start (shorter is better)\n'
        f'{found["when"][:10]}, {where}, {versions}',
        fontsize=11,
    )
    handles = [Patch(color=colour, label=_LABELS[stage]) for stage, colour in _COLOURS.items()]
    figure.legend(handles=handles, loc='outside lower center', ncols=len(handles), fontsize=9)
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == '__main__':
    main()
