"""``--list``, ``--stop`` and ``--explain``."""

from __future__ import annotations

import marshal
import os
import sys
import time

from overmind.run import starter
from overmind.run.before import Before
from overmind.run.client import Unserved, launch_for
from overmind.run.folders import NoFolder, Place, credentials, last_used, places
from overmind.run.learnt import Learnt
from overmind.run.options import Call

TYPE_CHECKING = False  # as in messages.py
if TYPE_CHECKING:
    from typing import Any


def show() -> int:
    """Print a line for each warm parent."""
    rows = [('PID', 'MEMORY', 'MODULES', 'LAST RUN', 'FOLDER', 'PROGRAM')]
    for place in _places():
        connection = place.connect()
        if connection is None:
            continue
        with connection:
            pid, _ = credentials(connection)
        about = _description(place)
        ago = time.time() - last_used(place)
        modules = str(about.get('modules', 'importing'))
        rows.append((str(pid), _memory(pid), modules, _span(ago), about.get('cwd', ''), about.get('program', '')))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print('  '.join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
    return 0


def stop_all() -> int:
    """End all warm parents of this user."""
    count = 0
    for place in _places():
        with place.locked():
            ended = [starter.stop(place, name) for name in (starter.SOCKET, starter.SUCCESSOR)]
            count += any(ended)
    print(f'{count} ended')
    return 0


def explain(call: Call) -> int:
    """Print how a program would be run, and what is imported in advance for it."""
    try:
        launch = launch_for(call)
    except Unserved as e:
        print(f'as plain python: {e}')
        return 0
    connection = launch.place.connect()
    if connection is None:
        print('no warm parent yet: the next run starts one')
    else:
        with connection:
            print(f'warm parent: {credentials(connection)[0]}, {_memory(credentials(connection)[0])}')
    learnt = Learnt.read(launch.learnt)
    print(f'learnt in earlier runs: {len(learnt.modules)} modules, {launch.learnt}')
    tops = dict.fromkeys(name.partition('.')[0] for name in learnt.wanted)
    print(f'imported in advance: {len(learnt.wanted)} modules of {", ".join(tops) or "none"}')
    settings = Before(launch.learnt).about()
    if settings:
        print(settings)
    for name, why in learnt.modules.items():
        if why is not None:
            print(f'not imported in advance: {name} {why}')
    replaced = launch.place.path('replaced')
    if os.path.exists(replaced):
        with open(replaced, encoding='utf-8', errors='replace') as file:
            print(f'last replaced because of {file.read()}')
    print(f'what imports wrote: {launch.place.path("errors")}')
    return 0


def _places() -> list[Place]:
    try:
        return places()
    except NoFolder as e:
        sys.exit(f'overmind run: {e}')


def _description(place: Place) -> dict[str, Any]:
    try:
        with open(place.path('description'), 'rb') as file:
            description: dict[str, Any] = marshal.load(file)
            return description
    except (OSError, EOFError, ValueError):
        return {}


def _memory(pid: int) -> str:
    """Proportional set size: what is shared with its children counts in parts."""
    try:
        with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as file:
            kilobytes = next(int(line.split()[1]) for line in file if line.startswith('Pss:'))
    except (OSError, StopIteration):
        return '?'
    return f'{kilobytes / 1024:.0f} MiB'


def _span(seconds: float) -> str:
    for unit, length in (('d', 86400), ('h', 3600), ('min', 60)):
        if seconds >= length:
            return f'{seconds / length:.0f} {unit}'
    return f'{max(seconds, 0):.0f} s'
