"""The Rust tokenizer of a transformers tokenizer, built when it is first used: half of the time of a hit otherwise.

Until then a :class:`Pending` stands in the object's ``__dict__``, and a data descriptor on the library's base class,
which comes before that, gives everybody who asks for ``_tokenizer`` the real one.
"""

from __future__ import annotations

import ctypes
import pickle
import threading
from typing import Any, SupportsIndex

from overmind.structure import tokenizers

_ATTRIBUTE = '_tokenizer'
_HOSTS = frozenset({'PreTrainedTokenizerFast', 'TokenizersBackend'})  # of transformers 4 and 5
_lock = threading.RLock()


# Bytes from which a tokenizer is kept in an arena, where it is shared and costs a hit nothing until it is used.
LARGE = 256 << 10


class Pending:
    """A ``tokenizers.Tokenizer`` to be; copies and pickles of it are those of the real one."""

    def __init__(self, data: Any) -> None:
        self.data = data  # a pickle: bytes, or a torch.UntypedStorage
        self._built: Any = None

    @classmethod
    def of(cls, tokenizer: Any) -> Pending:
        """Raises whatever pickling a part of the tokenizer raises, such as one that is written in Python."""
        parts = tokenizers.parts(tokenizer)
        return cls(pickle.dumps((tokenizers.whole, (tokenizer,)) if parts is None else (tokenizers.build, parts), 5))

    def get(self) -> Any:
        """The tokenizer, built once."""
        with _lock:
            if self._built is None:
                build, arguments = pickle.loads(self._buffer())
                self._built = build(*arguments)
                self.data = b''
            return self._built

    def _buffer(self) -> Any:
        if isinstance(self.data, bytes):
            return self.data
        return (ctypes.c_char * self.data.nbytes()).from_address(self.data.data_ptr())

    def stored(self) -> Any:
        """The pickle as a storage of its own, which starts where an arena keeps it."""
        import torch

        if isinstance(self.data, bytes):
            out = torch.empty(len(self.data), dtype=torch.uint8)
            ctypes.memmove(out.data_ptr(), self.data, len(self.data))
            self.data = out.untyped_storage()
        return self.data

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        # For a process without this package, too.
        return pickle.loads, (pickle.dumps(self.get(), int(protocol)),)


def now(pending: Pending) -> Any:
    """For whoever refers to the tokenizer itself; called by structure.pkl."""
    return pending.get()


def postponable(cls: type) -> bool:
    """Whether the tokenizer of an instance can wait: its class keeps it where the base class of the library does."""
    host = _host(cls)
    owner = next((c for c in cls.__mro__ if _ATTRIBUTE in vars(c)), host)
    return host is not None and owner is host


def set_state(obj: Any, state: dict[str, Any]) -> None:
    """The attributes of a transformers tokenizer; called by structure.pkl."""
    cls = type(obj)
    pending = state.get(_ATTRIBUTE)
    if isinstance(pending, Pending):
        if postponable(cls):
            _install(_host(cls))
        else:
            state = {**state, _ATTRIBUTE: pending.get()}
    vars(obj).update(state)


def _host(cls: type) -> Any:
    return next((c for c in cls.__mro__ if c.__name__ in _HOSTS and c.__module__.startswith('transformers.')), None)


class _Later:
    """The attribute of all tokenizers, also of those that no cache has made. It stays: objects may still need it."""

    def __init__(self, *default: Any) -> None:
        self._default = default

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        found = self._default if obj is None else vars(obj).get(_ATTRIBUTE, self._default)
        if found is self._default:
            if not found:
                raise AttributeError(f'{(owner or type(obj)).__name__!r} object has no attribute {_ATTRIBUTE!r}')
            return found[0]
        if type(found) is Pending:
            found = vars(obj)[_ATTRIBUTE] = found.get()
        return found

    def __set__(self, obj: Any, value: Any) -> None:
        vars(obj)[_ATTRIBUTE] = value

    def __delete__(self, obj: Any) -> None:
        try:
            del vars(obj)[_ATTRIBUTE]
        except KeyError:
            raise AttributeError(_ATTRIBUTE) from None


def _install(host: Any) -> None:
    with _lock:
        before = vars(host).get(_ATTRIBUTE, _Later)
        if type(before) is not _Later:
            setattr(host, _ATTRIBUTE, _Later() if before is _Later else _Later(before))
