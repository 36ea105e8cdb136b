"""What a manifest says, as plain Python values."""

from __future__ import annotations

import struct
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
    """One cached pipeline. Times are Unix nanoseconds, sizes bytes; paths are absolute."""

    id: str
    class_name: str = ''
    model_name: str = ''
    loader: str = ''
    scope: str = ''
    created_ns: int = 0
    fill_seconds: float = 0.0
    arenas: list[Arena] = field(default_factory=list)
    storages: list[StorageRow] = field(default_factory=list)
    storage_names: list[str] = field(default_factory=list)
    tensors: list[TensorRow] = field(default_factory=list)
    dims: list[int] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    structure_nbytes: int = 0
    key: list[tuple[str, str]] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    listings: list[Listing] = field(default_factory=list)
    distributions: list[tuple[str, str]] = field(default_factory=list)
    modules: list[tuple[str, str]] = field(default_factory=list)
