"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they must be: the first to the left, the others, which are figures, to the right."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    lines.insert(1, ['-' * width for width in widths])
    return '\n'.join('  '.join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)


def seconds(value: float) -> str:
    return f'{value:.2f} s' if value >= 1 else f'{value * 1e3:.0f} ms' if value >= 0.01 else f'{value * 1e3:.1f} ms'


def megabytes(nbytes: float) -> str:
    return f'{nbytes / 1e6:,.0f} MB'
