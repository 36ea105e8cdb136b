"""A byte string for a value, the same in every process and different for every different value.

Each encoding is a tag, a length and a payload, so that none is a prefix of another and concatenation stays injective.
Anything that might not mean the same in another process is refused with :class:`Unkeyable`.
"""

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import fractions
import functools
import operator
import os
import pathlib
import re
import types
from collections.abc import Callable, Iterable
from typing import Any

from overmind.errors import Unkeyable
from overmind.key import code, foreign, reduced
from overmind.key.absolute import absolute
from overmind.key.origin import is_first_party
from overmind.key.wire import PRIMITIVES, Refused, pack, pack_all, text, type_name

MAX_DEPTH = 100
MAX_PATH = 4096

Reference = Callable[[object], 'str | None']


def no_reference(_: object) -> str | None:
    """The reference function of a caller that has no cached objects."""
    return None


class Encoder:
    """Encodes values. ``reference`` gives a token for an object that came from the cache, else None.

    ``paths`` collects the existing files and folders that were met, ``names`` every other string. While ``reducing``,
    an object of a library that is not known otherwise counts by what it would be pickled as.
    """

    def __init__(self, reference: Reference, walker: code.Walker | None = None) -> None:
        self.paths: list[str] = []
        self.names: list[str] = []
        self.reference = reference
        self.reducing = False
        self._walker = walker
        self._open: set[int] = set()

    def encode(self, value: object, where: str = 'value') -> bytes:
        """The canonical bytes of a value. ``where`` names it in the error."""
        try:
            return self.any(value)
        except Refused as e:
            raise Unkeyable(e.message(where)) from None
        except RecursionError:
            raise Unkeyable(f'{where}: nested too deeply') from None

    def any(self, value: Any) -> bytes:
        kind = type(value)
        primitive = PRIMITIVES.get(kind)
        if primitive is not None:
            return primitive(value)
        if kind is str:
            return self.string(value)
        token = self.reference(value)
        if token is not None:
            return pack(b'R', token.encode())
        key = id(value)
        if key in self._open:
            raise Refused(f'a {kind.__qualname__} that contains itself')
        if len(self._open) >= MAX_DEPTH:
            raise Refused(f'nested deeper than {MAX_DEPTH} levels')
        self._open.add(key)
        try:
            known = _KNOWN.get(kind)
            return known(self, value) if known is not None else self._other(value, kind)
        finally:
            self._open.discard(key)

    # ---- plain values

    def string(self, value: str) -> bytes:
        path = existing(value)
        if path is not None:
            self.paths.append(path)
            return pack(b'p', os.fsencode(path))
        self.names.append(value)
        return text(value)

    def _path(self, value: pathlib.PurePath) -> bytes:
        raw = os.fspath(value)
        path = existing(raw)
        if path is not None:
            self.paths.append(path)
            return pack(b'p', os.fsencode(path))
        return pack(b'P', raw.encode('utf-8', 'surrogatepass'))

    # ---- containers

    def items(self, tag: bytes, values: Iterable[Any]) -> bytes:
        out: list[bytes] = []
        try:
            out.extend(map(self.any, values))
        except Refused as e:
            raise e.at(f'[{len(out)}]') from None
        return pack_all(tag, out)

    def _list(self, value: list[Any]) -> bytes:
        return self.items(b'l', value)

    def _tuple(self, value: tuple[Any, ...]) -> bytes:
        return self.items(b't', value)

    def _set(self, value: set[Any] | frozenset[Any]) -> bytes:
        tag = b'S' if isinstance(value, set) else b'Z'
        return pack_all(tag, sorted(self.any(item) for item in value))

    def mapping(self, value: dict[Any, Any], tag: bytes = b'd', ordered: bool = False) -> bytes:
        pairs = [(self.any(k), k, v) for k, v in value.items()]
        if not ordered:
            # Sorted before values are encoded: what a function's fingerprint holds depends on the order of visits.
            pairs.sort(key=operator.itemgetter(0))
        out = []
        try:
            for key, _, v in pairs:
                out.append(key + self.any(v))
        except Refused as e:
            k = pairs[len(out)][1]
            raise e.at(f'[{k!r}]' if isinstance(k, (str, int)) else '[...]') from None
        return pack_all(tag, out)

    def _dict(self, value: dict[Any, Any]) -> bytes:
        """In its order, which a loader may build modules in; keyword arguments do not come this way."""
        return self.mapping(value, ordered=True)

    def _ordered(self, value: collections.OrderedDict[Any, Any]) -> bytes:
        return self.mapping(value, b'D', ordered=True)

    def _default(self, value: collections.defaultdict[Any, Any]) -> bytes:
        return pack_all(b'F', (self.any(value.default_factory), self.mapping(value, ordered=True)))

    def _deque(self, value: collections.deque[Any]) -> bytes:
        return pack_all(b'Q', (self.any(value.maxlen), self.items(b'l', value)))

    # ---- standard library objects

    def named(self, tag: bytes, kind: type, *parts: bytes) -> bytes:
        """A value of a class: the class (with its code, where it is the user's own) and the parts."""
        return pack_all(tag, (self.named_type(kind), *parts))

    def named_type(self, value: Any) -> bytes:
        return self._walk().reference(value)

    def function(self, value: Any) -> bytes:
        return self._walk().reference(value)

    def _walk(self) -> code.Walker:
        if self._walker is None:
            self._walker = code.Walker(self.reference)
        return self._walker

    def _slice(self, value: slice) -> bytes:
        return self.items(b':', (value.start, value.stop, value.step))

    def _range(self, value: range) -> bytes:
        return self.items(b'r', (value.start, value.stop, value.step))

    def _text_of(self, value: object) -> bytes:
        return pack_all(b'v', (text(type_name(type(value))), text(str(value))))

    def _pattern(self, value: re.Pattern[Any]) -> bytes:
        return self.items(b'x', (value.pattern, value.flags))

    def _partial(self, value: functools.partial[Any]) -> bytes:
        return pack_all(b'q', (self.any(value.func), self.any(value.args), self.any(value.keywords)))

    def _method(self, value: types.MethodType) -> bytes:
        return pack_all(b'm', (self.any(value.__self__), self.function(value.__func__)))

    def _builtin(self, value: types.BuiltinFunctionType) -> bytes:
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType) or value.__module__:
            return pack_all(b'B', (text(value.__module__ or ''), text(value.__qualname__)))
        return pack_all(b'B', (self.any(owner), text(value.__qualname__)))

    def _descriptor(self, value: types.MethodDescriptorType) -> bytes:
        return pack_all(b'e', (self.named_type(value.__objclass__), text(value.__name__)))

    def _operator(self, value: Any) -> bytes:
        return pack_all(b'o', (text(type_name(type(value))), self.any(value.__reduce__()[1])))

    def _namespace(self, value: Any) -> bytes:
        return self.named(b'I', type(value), self.attributes(vars(value)))

    def _module(self, value: types.ModuleType) -> bytes:
        raise Refused(f'the Python module {value.__name__} cannot be compared between processes')

    # ---- everything else

    def _other(self, value: Any, kind: type) -> bytes:
        if isinstance(value, enum.Enum) and isinstance(kind, enum.EnumMeta):
            return self.named(b'E', kind, text(value.name or ''), self.any(value.value))
        if issubclass(kind, type):
            return self.named_type(value)
        if issubclass(kind, pathlib.PurePath):
            return self._path(value)
        found = foreign.encode(self, value, kind)
        if found is not None:
            return found
        own = dict(getattr(value, '__dict__', {}))
        content = self._content(value, kind)
        if dataclasses.is_dataclass(kind):
            # Fields may be slots, and __post_init__ or anybody later may have added what is no field.
            own |= {f.name: getattr(value, f.name, None) for f in dataclasses.fields(kind)}
            return self.named(b'c', kind, self.attributes(own), *content)
        if content:
            return self.named(b'u', kind, *content, self.attributes(own))
        if _is_plain(kind) or (kind.__module__ == 'argparse' and kind.__name__ == 'Namespace'):
            return self._namespace(value)
        if self.reducing:
            return reduced.encode(self, value)
        if hasattr(kind, 'from_pretrained') or foreign.is_module(value):
            raise Refused(f'{kind.__name__} did not come from the cache')
        raise Refused(f'an object of type {kind.__qualname__} cannot be compared between processes')

    def _content(self, value: Any, kind: type) -> tuple[bytes, ...]:
        """What an object of a subclass of a builtin holds as such; nothing for others."""
        for base, encode in _BASES:
            if issubclass(kind, base):
                plain = value if base in (collections.defaultdict, collections.deque) else base(value)
                return (encode(self, plain),)
        return ()

    def attributes(self, value: dict[str, Any]) -> bytes:
        out = []
        name = ''
        try:
            for name in sorted(value):
                out.append(text(name) + self.any(value[name]))
        except Refused as e:
            raise e.at('.' + name) from None
        return pack_all(b'a', out)


def existing(value: str | bytes) -> str | None:
    """The absolute form of a string that names an existing file or folder, else None."""
    if not value or len(value) > MAX_PATH:
        return None
    try:
        os.stat(value)
    except (OSError, ValueError):
        return None
    return absolute(os.fsdecode(value))


def _is_plain(kind: type) -> bool:
    """Whether instances are no more than their class and ``__dict__``: a user's own class over nothing but object."""
    for base in kind.__mro__[:-1]:
        if base.__module__ in ('abc', 'typing'):
            continue
        if not is_first_party(base.__module__) or '__slots__' in base.__dict__ or '__reduce__' in base.__dict__:
            return False
    return kind.__mro__[:-1] != () and kind.__dictoffset__ != 0


_KNOWN: dict[type, Callable[[Encoder, Any], bytes]] = {
    list: Encoder._list, tuple: Encoder._tuple, set: Encoder._set, frozenset: Encoder._set, dict: Encoder._dict,
    collections.OrderedDict: Encoder._ordered, type: Encoder.named_type, types.FunctionType: Encoder.function,
    types.MethodType: Encoder._method, types.BuiltinFunctionType: Encoder._builtin, slice: Encoder._slice,
    types.MethodDescriptorType: Encoder._descriptor, types.WrapperDescriptorType: Encoder._descriptor,
    functools.partial: Encoder._partial, range: Encoder._range, re.Pattern: Encoder._pattern,
    decimal.Decimal: Encoder._text_of, fractions.Fraction: Encoder._text_of, type(Ellipsis): Encoder._text_of,
    operator.itemgetter: Encoder._operator, operator.attrgetter: Encoder._operator,
    operator.methodcaller: Encoder._operator, types.ModuleType: Encoder._module,
    types.SimpleNamespace: Encoder._namespace,
}  # fmt: skip


def _plain(encoder: Encoder, value: Any) -> bytes:
    return PRIMITIVES[bytes if type(value) is bytearray else type(value)](value)


# Subclasses of builtins keep their class in the key; bool has none, and int comes before nothing it could shadow.
_BASES: tuple[tuple[Any, Callable[[Encoder, Any], bytes]], ...] = (
    (str, Encoder.string), (bytes, _plain), (bytearray, _plain), (int, _plain),
    (float, _plain), (complex, _plain), (list, Encoder._list), (tuple, Encoder._tuple),
    (set, Encoder._set), (frozenset, Encoder._set), (collections.OrderedDict, Encoder._ordered),
    (collections.defaultdict, Encoder._default), (dict, Encoder._dict), (collections.deque, Encoder._deque),
)  # fmt: skip
