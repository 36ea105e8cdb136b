"""The memory of a real object while it is copied into arenas, let go as its copy is there.

A first load then needs room for the weights once, and not twice, and a machine that has to fetch fresh memory from
somewhere fetches half of it. Nothing is overwritten: what somebody else refers to stays.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from overmind.arena import Plan

WORTH = 64 << 20  # bytes; below, a second copy for a moment hurts nobody
# Let go at once, in bytes: enough for all threads of a copy, little beside a model.
STEP = 256 << 20

_trim: Any = getattr(ctypes.CDLL(None), 'malloc_trim', None)  # glibc's


class Originals:
    """storages on the host, one for each row of the manifest; places gives the region of each and the offset in it."""

    def __init__(self, storages: list[Any], places: Sequence[tuple[int, int]]) -> None:
        self._storages = storages
        self._members: dict[int, list[tuple[int, int]]] = {}
        for i, (region, offset) in enumerate(places):
            self._members.setdefault(region, []).append((i, offset))
        self._sizes = [s.nbytes() for s in storages]
        self._copies: dict[int, tuple[Any, int]] = {}  # of storages that were let go: whole arena, bytes from its start

    def free_cycles(self) -> None:
        """Once nobody has the object any more: where it was part of reference cycles, collect these."""
        import torch

        count = getattr(torch._C, '_storage_Use_Count', None)
        largest = max(self._storages, key=lambda s: int(s.nbytes()), default=None)
        if count is None or (largest is not None and count(largest._cdata) > 1):
            gc.collect()

    def let_go(self, plan: Plan, pieces: Iterable[tuple[int, int, int]], arena: Any) -> None:
        """What the pieces of a plan point to is in its arena now, a storage over the whole of that."""
        regions = {offset: region for region, offset in plan.offsets.items()}
        for start, _, _ in pieces:
            for i, offset in self._members[regions[start]]:
                self._storages[i] = None
                self._copies[i] = (arena, start + offset)
        if _trim is not None:
            _trim(0)

    def all(self) -> list[Any]:
        """The storages, those that were let go as windows of their copies."""
        found = list(self._storages)
        for i, (arena, start) in self._copies.items():
            found[i] = arena[start : start + self._sizes[i]]
        return found


def batches(pieces: Sequence[tuple[int, int, int]], step: int) -> Iterator[list[tuple[int, int, int]]]:
    """Runs of pieces of about step bytes."""
    batch: list[tuple[int, int, int]] = []
    nbytes = 0
    for piece in pieces:
        batch.append(piece)
        nbytes += piece[2]
        if nbytes >= step:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
