"""What a manifest says, as plain Python values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from overmind.key.inputs import Listing as Listing
from overmind.key.inputs import Source as Source

FORMAT = 1
REQUIRES_GRAD, PARAMETER = 1, 2

# The layouts of the structs in schema/manifest.fbs; FlatBuffers structs are little endian and without hidden padding.
STORAGE = struct.Struct('<QQII')
TENSOR = struct.Struct('<QIIHBBI')


class Arena(NamedTuple):
    """One file under ``tensors/``; nbytes is its whole size."""

    name: str
    nbytes: int


class StorageRow(NamedTuple):
    """A window of an arena, in bytes; nbytes 0 is an empty storage without memory."""

    offset: int
    nbytes: int
    arena: int
    device: int


class TensorRow(NamedTuple):
    """A strided view of a storage; offset in elements, dims an index into :attr:`Manifest.dims`."""

    offset: int
    dims: int
    storage: int
    dtype: int
    ndim: int
    flags: int
    reserved: int = 0


@dataclass(slots=True)
class Manifest:
    """One cached pipeline. Times are Unix nanoseconds, sizes bytes; paths are absolute.

    The rows of storages and tensors are those of StorageRow and TensorRow; one that was read has them as plain tuples,
    since there are thousands, and a class of their own would cost as much again.
    """

    id: str
    class_name: str = ''
    model_name: str = ''
    loader: str = ''
    scope: str = ''
    created_ns: int = 0
    fill_seconds: float = 0.0
    arenas: list[Arena] = field(default_factory=list)
    storages: Sequence[tuple[int, int, int, int]] = field(default_factory=list)
    storage_names: list[str] = field(default_factory=list)
    tensors: Sequence[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    dims: list[int] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    structure_nbytes: int = 0
    key: list[tuple[str, str]] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    listings: list[Listing] = field(default_factory=list)
    distributions: list[tuple[str, str]] = field(default_factory=list)
    modules: list[tuple[str, str]] = field(default_factory=list)
