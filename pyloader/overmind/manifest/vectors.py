"""Tables and vectors of a FlatBuffer in one pass; the generated accessors take a dozen Python calls for each string,
and their library a good part of a hit to import.

Every offset is checked: ``struct`` refuses what is past the end, and counts negative ones from there.
"""

from __future__ import annotations

import struct

from overmind.errors import CorruptEntry

U32, I32, U64, I64, F64 = (struct.Struct(f'<{code}') for code in 'IiQqd')
_U16 = struct.Struct('<H')
_PAIR = struct.Struct('<iII')
STRINGS_FACTOR = 16  # the daemon's decoder has the same limit


def _too_long() -> CorruptEntry:
    return CorruptEntry(f'the strings of the manifest are longer than {STRINGS_FACTOR} times all of it')


class Table:
    """A table at a place in data. Slots are the offsets in its vtable: 4 + 2 * position of the field."""

    __slots__ = ('_at', '_data', '_fields', '_left', '_vtable')

    def __init__(self, data: bytes, at: int, left: list[int] | None = None) -> None:
        self._data, self._at = data, at
        # Bytes that strings may still take: offsets may lead to one long string again and again.
        self._left = [STRINGS_FACTOR * len(data)] if left is None else left
        self._vtable = at - I32.unpack_from(data, at)[0]
        if self._vtable < 0:
            raise CorruptEntry('a table of the manifest starts before its beginning')
        self._fields = _U16.unpack_from(data, self._vtable)[0]

    def place(self, slot: int) -> int:
        """Where a field is; 0 where the table has none."""
        offset = _U16.unpack_from(self._data, self._vtable + slot)[0] if slot < self._fields else 0
        return self._at + offset if offset else 0

    def number(self, slot: int, kind: struct.Struct) -> int:
        at = self.place(slot)
        return kind.unpack_from(self._data, at)[0] if at else 0

    def real(self, slot: int) -> float:
        at = self.place(slot)
        return F64.unpack_from(self._data, at)[0] if at else 0.0

    def text(self, slot: int) -> str:
        at = self.place(slot)
        return self._string(at + U32.unpack_from(self._data, at)[0]) if at else ''

    def required(self, slot: int) -> str:
        if not self.place(slot):
            raise CorruptEntry('a table of the manifest lacks a field')
        return self.text(slot)

    def structs(self, slot: int, size: int, most: int = 1 << 32) -> memoryview:
        """The bytes of a vector of at most so many structs, each of size bytes."""
        start, count = self._vector(slot, size)
        if count > most:
            raise CorruptEntry(f'a vector of the manifest has {count} items, more than {most}')
        return memoryview(self._data)[start : start + count * size]

    def strings(self, slot: int) -> list[str]:
        return [self._string(at) for at in self._offsets(slot)]

    def tables(self, slot: int) -> list[Table]:
        return [Table(self._data, at, self._left) for at in self._offsets(slot)]

    def pairs(self, slot: int) -> list[tuple[str, str]]:
        """A vector of tables whose first two fields are required strings.

        There are hundreds: those that have the usual layout, the two fields behind the offset of the vtable, are read
        without a step for each of their parts. What is checked is the same.
        """
        data, left = self._data, self._left[0]
        size, unpack, length = len(data), _PAIR.unpack_from, U32.unpack_from
        layouts: dict[int, tuple[int, int]] = {}  # by vtable, the places of the two fields in a table
        out = []
        for at in self._offsets(slot):
            back, one, two = unpack(data, at)
            vtable = at - back
            layout = layouts.get(vtable)
            if layout is None:
                table = Table(data, at, self._left)
                layout = layouts[vtable] = table.place(4) - at, table.place(6) - at
            if layout == (8, 4):
                one, two = at + 8 + two, at + 4 + one
            elif layout == (4, 8):
                one, two = at + 4 + one, at + 8 + two
            else:
                self._left[0] = left
                table = Table(data, at, self._left)
                out.append((table.required(4), table.required(6)))
                left = self._left[0]
                continue
            (n,), (m,) = length(data, one), length(data, two)
            one, two = one + 4, two + 4
            if one + n > size or two + m > size:
                raise CorruptEntry('a string of the manifest reaches past its end')
            left -= n + m
            if left < 0:
                raise _too_long()
            out.append((data[one : one + n].decode(), data[two : two + m].decode()))
        self._left[0] = left
        return out

    def _vector(self, slot: int, size: int) -> tuple[int, int]:
        """Where the items of a vector start, and how many there are."""
        at = self.place(slot)
        if not at:
            return 0, 0
        at += U32.unpack_from(self._data, at)[0]
        (count,) = U32.unpack_from(self._data, at)
        if at + 4 + count * size > len(self._data):
            raise CorruptEntry('a vector of the manifest reaches past its end')
        return at + 4, count

    def _offsets(self, slot: int) -> list[int]:
        """The places that a vector of offsets points to."""
        start, count = self._vector(slot, 4)
        offsets = struct.unpack_from(f'<{count}I', self._data, start)
        return [at + offset for at, offset in zip(range(start, start + 4 * count, 4), offsets, strict=True)]

    def _string(self, at: int) -> str:
        (nbytes,) = U32.unpack_from(self._data, at)
        end = at + 4 + nbytes
        if end > len(self._data):
            raise CorruptEntry('a string of the manifest reaches past its end')
        self._left[0] -= nbytes
        if self._left[0] < 0:
            raise _too_long()
        return self._data[at + 4 : end].decode()
