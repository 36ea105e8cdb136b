"""The bytes that canonical encodings are made of: a tag, a length, a payload. None is a prefix of another."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any


class Refused(Exception):
    """A value without a canonical form; ``trail`` collects where it lies while the error travels up."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trail: list[str] = []

    def at(self, where: str) -> Refused:
        self.trail.append(where)
        return self

    def message(self, where: str) -> str:
        steps = self.trail[::-1]
        if len(steps) > 8:
            steps[4:-4] = ['...']
        return f'{where}{"".join(steps)}: {self.reason}'


def pack(tag: bytes, payload: bytes) -> bytes:
    return tag + len(payload).to_bytes(8, 'little') + payload


def pack_all(tag: bytes, items: Iterable[bytes]) -> bytes:
    return pack(tag, b''.join(items))


def none(_: object) -> bytes:
    return b'n'


def boolean(value: bool) -> bytes:
    return b'T' if value else b'F'


def integer(value: int) -> bytes:
    return pack(b'i', value.to_bytes(value.bit_length() // 8 + 1, 'little', signed=True))


def real(value: float) -> bytes:
    return b'f' + struct.pack('<d', value)


def cmplx(value: complex) -> bytes:
    return b'j' + struct.pack('<dd', value.real, value.imag)


def text(value: str) -> bytes:
    return pack(b's', value.encode('utf-8', 'surrogatepass'))


def data(value: bytes | bytearray) -> bytes:
    return pack(b'b', bytes(value))


def type_name(kind: type) -> str:
    return f'{kind.__module__}:{kind.__qualname__}'


PRIMITIVES: dict[type, Callable[[Any], bytes]] = {
    type(None): none, bool: boolean, int: integer, float: real, complex: cmplx, bytes: data,
}  # fmt: skip
