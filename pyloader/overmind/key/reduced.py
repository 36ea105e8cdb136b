"""Canonical bytes of an object of a library by what it would be pickled as: for what a user's class or decorator holds.

Not for arguments and globals: an object there that means to be unlike any other (a time, a connection) is better named
as the reason for a bypass than hashed into a key that nobody asks for again.
"""

from __future__ import annotations

import hashlib
import pickle
import types
from typing import TYPE_CHECKING, Any

from overmind.key.wire import Refused, pack

if TYPE_CHECKING:
    from overmind.key.canonical import Encoder

MAX_BYTES = 1 << 20
_CODE = (type, types.FunctionType, types.MethodType)
_UNORDERED = (set, frozenset)  # whose order is another one in every process


class _Sink:
    """Hashes what is written to it, up to a limit."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._nbytes = 0

    def write(self, data: bytes) -> int:
        self._nbytes += len(data)
        if self._nbytes > MAX_BYTES:
            raise Refused(f'more than {MAX_BYTES} bytes')
        self.hash.update(data)
        return len(data)


class _Pickler(pickle.Pickler):
    def __init__(self, sink: _Sink, encoder: Encoder) -> None:
        super().__init__(sink, protocol=4)
        # No memo: whether two equal strings are one object depends on how their module was loaded.
        self.fast = True
        self._encoder = encoder

    def persistent_id(self, obj: Any) -> bytes | None:
        known = isinstance(obj, _CODE) or type(obj) in _UNORDERED or hasattr(type(obj), '__array_interface__')
        return self._encoder.any(obj) if known or hasattr(obj, 'untyped_storage') else None


def encode(encoder: Encoder, value: Any) -> bytes:
    """The bytes of an object, code that it refers to included; Refused where it cannot be pickled."""
    sink = _Sink()
    try:
        _Pickler(sink, encoder).dump(value)
    except Refused:
        raise
    except Exception as e:
        kind = type(value).__qualname__
        raise Refused(f'an object of type {kind} cannot be compared between processes ({type(e).__name__}: {e})') from e
    return pack(b'w', sink.hash.digest())
