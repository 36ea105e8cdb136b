"""What a manifest says, as plain Python values."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from overmind.key.inputs import Listing as Listing
from overmind.key.inputs import Source as Source

FORMAT = 1
REQUIRES_GRAD, PARAMETER = 1, 2

# The layouts of the structs in schema/manifest.fbs; FlatBuffers structs are little endian and without hidden padding.
STORAGE = struct.Struct('<QQII')
TENSOR = struct.Struct('<QIIHBBI')


Storage: TypeAlias = tuple[int, int, int, int]
Tensor: TypeAlias = tuple[int, int, int, int, int, int, int]
Row = TypeVar('Row', Storage, Tensor)


class Packed(Sequence[Row]):
    """Rows as they lie in the file, made to tuples when they are asked for: a reader that has the helper does not."""

    __slots__ = ('_layout', 'data')

    def __init__(self, data: bytes, layout: struct.Struct) -> None:
        self.data, self._layout = data, layout

    def __len__(self) -> int:
        return len(self.data) // self._layout.size

    def __iter__(self) -> Iterator[Row]:
        return self._layout.iter_unpack(self.data)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return list(self)[at]
        n = len(self)
        if not -n <= at < n:
            raise IndexError(f'row {at} of {n}')
        return self._layout.unpack_from(self.data, at % n * self._layout.size)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


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

    The rows of storages and tensors are those of StorageRow and TensorRow; one that was read has them :class:`Packed`,
    as plain tuples.
    """

    id: str
    class_name: str = ''
    model_name: str = ''
    loader: str = ''
    scope: str = ''
    created_ns: int = 0
    fill_seconds: float = 0.0
    arenas: list[Arena] = field(default_factory=list)
    storages: Sequence[Storage] = field(default_factory=list)
    storage_names: list[str] = field(default_factory=list)
    tensors: Sequence[Tensor] = field(default_factory=list)
    dims: list[int] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    structure_nbytes: int = 0
    key: list[tuple[str, str]] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    listings: list[Listing] = field(default_factory=list)
    distributions: list[tuple[str, str]] = field(default_factory=list)
    modules: list[tuple[str, str]] = field(default_factory=list)
    # The tables of one that was read: storages, tensors, dims.
    packed: tuple[bytes, bytes, bytes] | None = field(default=None, compare=False, repr=False)
