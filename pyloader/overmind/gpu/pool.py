"""A few page-locked buffers that are filled in turn, while the device still reads those before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from overmind.gpu.layer import Layer

NBYTES = 32 << 20
BUFFERS = 2
_ALIGN = 64  # for the copy into a buffer


class Pool:
    """Kept as long as the process. One user at a time."""

    def __init__(self, nbytes: int = NBYTES, count: int = BUFFERS) -> None:
        self._nbytes, self._count = nbytes, count
        self._buffers: list[Any] = []

    def copy(self, layer: Layer, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Every source into its target: large ones in pieces, small ones side by side in one buffer."""
        while len(self._buffers) < self._count:
            self._buffers.append(layer.pinned(self._nbytes))
        marks: list[Any] = [None] * self._count
        which = used = 0
        for target, source in pairs:
            at, nbytes = 0, len(source)
            while at < nbytes:
                if used >= self._nbytes:
                    marks[which] = layer.mark()
                    which, used = (which + 1) % self._count, 0
                    if marks[which] is not None:
                        layer.wait(marks[which])
                end = min(nbytes, at + self._nbytes - used)
                piece = self._buffers[which][used : used + end - at]
                piece.copy_(source[at:end])
                layer.copy(target[at:end], piece)
                used = -(-(used + end - at) // _ALIGN) * _ALIGN
                at = end
        layer.finish()
