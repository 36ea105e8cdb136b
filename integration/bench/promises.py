"""The figures against the committed file of what they have to be."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.harness.table import table

_FILE = Path(__file__).with_name('promises.toml')


@dataclass(frozen=True)
class Promise:
    """What issue and README promise, and the limit of the check, which leaves room for a worse day of the machine."""

    name: str
    what: str
    promised: float
    limit: float
    at_most: bool

    def keeps(self, value: float, bound: float) -> bool:
        return value <= bound if self.at_most else value >= bound


def promises(path: Path = _FILE) -> list[Promise]:
    parser: Any = importlib.import_module('tomllib' if sys.version_info >= (3, 11) else 'tomli')
    rows = parser.loads(path.read_text())['promise']
    found = []
    for row in rows:
        at_most = 'at_most' in row
        promised = row['at_most'] if at_most else row['at_least']
        found.append(Promise(row['figure'], row['what'], promised, row.get('limit', promised), at_most))
    return found


def broken(figures: Mapping[str, float]) -> list[str]:
    """Those that are beyond the limit of the check; what was not measured is not."""
    return [
        f'{promise.what}: {figures[promise.name]:.3g}, and the limit is {promise.limit:g}'
        for promise in promises()
        if promise.name in figures and not promise.keeps(figures[promise.name], promise.limit)
    ]


def as_table(figures: Mapping[str, float]) -> str:
    rows, absent = [], 0
    for promise in promises():
        if promise.name not in figures:
            absent += 1
            continue
        value = figures[promise.name]
        beyond = 'MISSED' if not promise.keeps(value, promise.limit) else 'missed, within the margin'
        verdict = 'kept' if promise.keeps(value, promise.promised) else beyond
        sign = 'at most' if promise.at_most else 'at least'
        rows.append([promise.what, f'{value:.3g}', f'{sign} {promise.promised:g}', f'{promise.limit:g}', verdict])
    shown = table(['what must hold', 'measured', 'promised', 'limit of bench-check', ''], rows)
    return f'{shown}\n{absent} more were not measured' if absent else shown
