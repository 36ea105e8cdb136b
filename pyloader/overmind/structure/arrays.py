"""numpy arrays that a pickle would change: those that share memory with a tensor or with each other, have gaps, or are
read-only."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable
from typing import Any

import torch

Place = tuple[torch.UntypedStorage, int]
Span = tuple[int, int, Any]  # of memory, and the array over it; None: a storage


def is_array(kind: type) -> bool:
    numpy = sys.modules.get('numpy')
    return numpy is not None and kind is getattr(numpy, 'ndarray', None)


MAPPED = 'a numpy array that maps a file, of which a copy would be cut off'


def is_mapped(kind: type) -> bool:
    memmap = getattr(sys.modules.get('numpy'), 'memmap', None)
    return memmap is not None and issubclass(kind, memmap)


def has_mapped(a: Any) -> bool:
    """Whether the memory of an array is that of a file."""
    while a is not None:
        if isinstance(a, mmap.mmap) or is_mapped(type(a)):
            return True
        a = a.obj if isinstance(a, memoryview) else getattr(a, 'base', None)
    return False


def shared(arrays: Iterable[Any], storages: Iterable[torch.UntypedStorage]) -> dict[int, Place]:
    """By id, the arrays whose memory something else has too, that have gaps or are read-only: a storage over all that
    hangs together, and the offset in it. The storages are over the same memory as the arrays, and do not keep it
    alive."""
    distinct = {id(a): a for a in arrays}.values()
    spans: list[Span] = [(*_bounds(a), a) for a in distinct if a.size and not a.dtype.hasobject]
    if not spans:
        return {}
    host = [s for s in storages if s.device.type == 'cpu' and s.nbytes()]
    spans += [(s.data_ptr(), s.data_ptr() + s.nbytes(), None) for s in host]
    spans.sort(key=lambda span: span[:2])
    found: dict[int, Place] = {}
    group: list[Span] = []
    for span in [*spans, (sys.maxsize, sys.maxsize, None)]:
        if group and span[0] >= max(end for _, end, _ in group):
            if len(group) > 1 or not _is_whole(group[0][2]):
                found.update(_over(group))
            group = []
        group.append(span)
    return found


def _is_whole(a: Any) -> bool:
    return a is None or (a.flags.writeable and (a.flags.c_contiguous or a.flags.f_contiguous))


def _over(group: list[Span]) -> dict[int, Place]:
    start, end = group[0][0], max(end for _, end, _ in group)
    memory = (ctypes.c_ubyte * (end - start)).from_address(start)
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return {id(a): (storage, _address(a) - start) for _, _, a in group if a is not None}


def _address(a: Any) -> int:
    return int(a.__array_interface__['data'][0])


def _bounds(a: Any) -> tuple[int, int]:
    """From the first byte to the one after the last; strides may be negative."""
    steps = [(n - 1) * stride for n, stride in zip(a.shape, a.strides, strict=True)]
    first = _address(a)
    return first + sum(s for s in steps if s < 0), first + sum(s for s in steps if s > 0) + a.itemsize
