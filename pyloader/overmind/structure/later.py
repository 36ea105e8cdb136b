"""The Rust tokenizer of a transformers tokenizer, built when it is first used: half of the time of a hit otherwise.

Until then a :class:`Pending` stands in the object's ``__dict__``, and a data descriptor on the library's base class,
which comes before that, gives everybody who asks for ``_tokenizer`` the real one.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import threading
from typing import Any, SupportsIndex

from overmind.structure import tokenizers

_ATTRIBUTE = '_tokenizer'
_HOSTS = frozenset({'PreTrainedTokenizerFast', 'TokenizersBackend'})  # of transformers 4 and 5
lock = threading.RLock()
os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]  # a thread may be in the middle

# Bytes from which what waits is kept in an arena, where it is shared and costs a hit nothing until it is used.
LARGE = 256 << 10


class Kept:
    """A pickle that waits: bytes, or a torch.UntypedStorage."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def buffer(self) -> Any:
        """Its bytes."""
        if isinstance(self.data, bytes):
            return self.data
        return (ctypes.c_char * self.data.nbytes()).from_address(self.data.data_ptr())

    def stored(self) -> Any:
        """The bytes of a small one; of a large one a storage of its own, which starts where an arena keeps it."""
        import torch

        if isinstance(self.data, bytes) and len(self.data) >= LARGE:
            out = torch.empty(len(self.data), dtype=torch.uint8)
            ctypes.memmove(out.data_ptr(), self.data, len(self.data))
            self.data = out.untyped_storage()
        return self.data


class Waiting:
    """An attribute to be, in the place of it; copies and pickles of it are those of the real value."""

    def get(self) -> Any:
        raise NotImplementedError

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        # For a process without this package, too.
        return pickle.loads, (pickle.dumps(self.get(), int(protocol)),)


class Pending(Kept, Waiting):
    """A ``tokenizers.Tokenizer`` to be."""

    _built: Any = None

    @classmethod
    def of(cls, tokenizer: Any) -> Pending:
        """Raises whatever pickling a part of the tokenizer raises, such as one that is written in Python."""
        parts = tokenizers.parts(tokenizer)
        build = (tokenizers.whole, (tokenizer,)) if parts is None else (tokenizers.build, parts)
        return cls(pickle.dumps((*build, tokenizers.attributes(tokenizer)), 5))

    def get(self) -> Any:
        """The tokenizer, built once."""
        with lock:
            if self._built is None:
                build, arguments, attributes = pickle.loads(self.buffer())
                self._built = build(*arguments)
                tokenizers.set_attributes(self._built, attributes)
                self.data = b''
            return self._built


def now(pending: Pending) -> Any:
    """For whoever refers to the tokenizer itself; called by structure.pkl."""
    return pending.get()


def restored_by_dict(cls: Any) -> bool:
    """Whether all that unpickling does to an instance is to give it its attributes. Marian's and others' load a
    SentencePiece model in ``__setstate__``."""
    stock = (object.__reduce_ex__, object.__reduce__)
    return (cls.__reduce_ex__, cls.__reduce__) == stock and not hasattr(cls, '__setstate__')


def postponable(cls: type) -> bool:
    """Whether the tokenizer of an instance can wait: its class keeps it where the base class of the library does."""
    host = _host(cls) if restored_by_dict(cls) else None
    owner = next((c for c in cls.__mro__ if _ATTRIBUTE in vars(c)), host)
    return host is not None and owner is host


def reduced(obj: Any, pending: Pending) -> Any:
    """What structure.pkl has of a tokenizer whose Rust one is built when it is used."""
    parts = obj.__reduce_ex__(4)
    if len(parts) < 3 or not isinstance(parts[2], dict):
        return NotImplemented
    return (*parts[:2], {**parts[2], _ATTRIBUTE: pending}, None, None, set_state)


def settle(obj: Any) -> None:
    """Let nothing of an object wait any more: its pickle would be another one after its first use."""
    for name in [n for n, value in getattr(obj, '__dict__', {}).items() if isinstance(value, Waiting)]:
        getattr(obj, name)


def set_state(obj: Any, state: dict[str, Any]) -> None:
    """The attributes of a transformers tokenizer; called by structure.pkl."""
    cls = type(obj)
    pending = state.get(_ATTRIBUTE)
    if isinstance(pending, Pending):
        if postponable(cls):
            install(_host(cls), _ATTRIBUTE)
        else:
            state = {**state, _ATTRIBUTE: pending.get()}
    vars(obj).update(state)


def _host(cls: type) -> Any:
    return next((c for c in cls.__mro__ if c.__name__ in _HOSTS and c.__module__.startswith('transformers.')), None)


_NOTHING: Any = object()


class Later:
    """An attribute of all tokenizers of a class, also of those that no cache has made. It stays: objects may still need
    it."""

    def __init__(self, name: str, default: Any = _NOTHING) -> None:
        self._name, self._default = name, default

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        name = self._name
        found = _NOTHING if obj is None else obj.__dict__.get(name, _NOTHING)
        if found is _NOTHING:
            return self._of_class(obj, owner or type(obj))
        if isinstance(found, Waiting):
            found = obj.__dict__[name] = found.get()
        return found

    def _of_class(self, obj: Any, owner: type) -> Any:
        """What there would be without this: of the same class, or of one behind it."""
        if self._default is not _NOTHING:
            return self._default
        for cls in owner.__mro__:
            found = vars(cls).get(self._name, self)
            if type(found) is not Later:
                get = getattr(type(found), '__get__', None)
                return found if get is None else get(found, obj, owner)
        raise AttributeError(f'{owner.__name__!r} object has no attribute {self._name!r}')

    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__[self._name] = value

    def __delete__(self, obj: Any) -> None:
        try:
            del obj.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None


def install(host: Any, name: str) -> None:
    """Let instances of a class have such an attribute."""
    with lock:
        before = vars(host).get(name, Later)
        if type(before) is Later:
            return
        setattr(host, name, Later(name) if before is Later else Later(name, before))
        missing = getattr(host, '__getattr__', None)
        if missing is not None and not hasattr(missing, _MARK):
            host.__getattr__ = _hiding(missing)


_MARK = '_overmind_hides_later'


def _hiding(missing: Any) -> Any:
    """The ``__getattr__`` of a class; that of transformers 5 gives what the dict of the class has, as it is."""

    @functools.wraps(missing)
    def __getattr__(self: Any, key: str) -> Any:
        found = missing(self, key)
        if type(found) is Later:
            raise AttributeError(f'{type(self).__name__} has no attribute {key}')
        return found

    setattr(__getattr__, _MARK, True)
    return __getattr__
