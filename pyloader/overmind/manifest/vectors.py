"""Vectors of a FlatBuffer in one pass; the generated accessors take a dozen Python calls for each string.

Every offset is checked: ``struct`` refuses what is past the end, and counts negative ones from there.
"""

from __future__ import annotations

import struct
from typing import Any

from overmind.errors import CorruptEntry

_U32, _I32, _FIELDS = struct.Struct('<I'), struct.Struct('<i'), struct.Struct('<HHHH')


def structs(root: Any, slot: int, size: int, data: bytes) -> memoryview:
    """The bytes of the vector of structs, each of size bytes, in a vtable slot of the root table."""
    start, count = _vector(root, slot, size, data)
    return memoryview(data)[start : start + count * size]


def strings(root: Any, slot: int, data: bytes) -> list[str]:
    """The vector of strings in a vtable slot."""
    return [_string(data, at) for at in _offsets(root, slot, data)]


def pairs(root: Any, slot: int, data: bytes) -> list[tuple[str, str]]:
    """The vector of tables in a vtable slot whose first two fields are required strings."""
    return [(_field(data, at, 0), _field(data, at, 1)) for at in _offsets(root, slot, data)]


def _vector(root: Any, slot: int, size: int, data: bytes) -> tuple[int, int]:
    """Where the items of a vector start, and how many there are."""
    table = root._tab
    at = table.Offset(slot)
    if not at:
        return 0, 0
    start, count = table.Vector(at), table.VectorLen(at)
    if start < 0 or start + count * size > len(data):
        raise CorruptEntry('a vector of the manifest reaches past its end')
    return start, count


def _offsets(root: Any, slot: int, data: bytes) -> list[int]:
    """The places that a vector of offsets points to."""
    start, count = _vector(root, slot, 4, data)
    offsets = struct.unpack_from(f'<{count}I', data, start)
    return [at + offset for at, offset in zip(range(start, start + 4 * count, 4), offsets, strict=True)]


def _string(data: bytes, at: int) -> str:
    (nbytes,) = _U32.unpack_from(data, at)
    end = at + 4 + nbytes
    if end > len(data):
        raise CorruptEntry('a string of the manifest reaches past its end')
    return data[at + 4 : end].decode()


def _field(data: bytes, table: int, number: int) -> str:
    """A string field of a table."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise CorruptEntry('a table of the manifest starts before its beginning')
    nbytes, _, *fields = _FIELDS.unpack_from(data, vtable)
    if nbytes < _FIELDS.size or not fields[number]:
        raise CorruptEntry('a table of the manifest lacks a field')
    at = table + fields[number]
    return _string(data, at + _U32.unpack_from(data, at)[0])
