"""Memory that is page-locked where it is, for as long as one copy takes.

Not for longer: the mapping of an arena is private, and a page that the program writes to becomes another one, while the
device would go on reading the page that was locked.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from typing import Any

from overmind.gpu.layer import Layer
from overmind.logs import warn_once

SPAN = 256 << 20  # locked at a time; two of them, as the next one is locked while the device reads
_PAGE = mmap.PAGESIZE

Pieces = list[tuple[Any, Any]]


def spans(pairs: Iterable[tuple[Any, Any]], limit: int = SPAN) -> Iterator[tuple[int, int, Pieces]]:
    """Whole pages, as (address, nbytes) that do not overlap, each with the pieces of (target, source) within it. Gaps
    are left out, as there may be no memory. limit: a multiple of the page; no span goes beyond one of its multiples."""
    cut: list[tuple[int, Any, Any]] = []
    for target, source in pairs:
        address, at = source.data_ptr(), 0
        while at < len(source):
            stop = min(len(source), at + limit - (address + at) % limit)
            cut.append((address + at, target[at:stop], source[at:stop]))
            at = stop
    start = end = 0
    pieces: Pieces = []
    for address, target, source in sorted(cut, key=lambda piece: piece[0]):
        if pieces and (address // limit != start // limit or address // _PAGE * _PAGE > end):
            yield start, end - start, pieces
            pieces = []
        if not pieces:
            start = end = address // _PAGE * _PAGE
        pieces.append((target, source))
        end = max(end, -(-(address + len(source)) // _PAGE) * _PAGE)
    if pieces:
        yield start, end - start, pieces


def copy(layer: Layer, pairs: Iterable[tuple[Any, Any]]) -> None:
    """Every source into its target. Where the driver refuses to lock a span, it is copied as it is."""
    locked: list[int] = []
    before: Any = None
    try:
        for address, nbytes, pieces in spans(pairs):
            why = layer.register(address, nbytes)
            if why is None:
                locked.append(address)
            else:
                warn_once('pin:register', f'OVERMIND_PIN=register: {why}; copies to the GPU are not pinned. Try pool')
            for target, source in pieces:
                layer.copy(target, source)
            mark = layer.mark()
            if before is not None:
                layer.wait(before)
            while len(locked) > (why is None):
                layer.unregister(locked.pop(0))
            before = mark
    finally:
        try:
            layer.finish()
        finally:
            for address in locked:
                layer.unregister(address)
