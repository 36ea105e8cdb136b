"""What a code object does, without where it stands: no file name and no line numbers."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from overmind.key.wire import PRIMITIVES, pack, pack_all, text

_READS = frozenset({'LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_CLASSDEREF', 'LOAD_FROM_DICT_OR_GLOBALS'})
_DOTS = frozenset({'LOAD_ATTR', 'LOAD_METHOD'})
_BETWEEN = frozenset({'CACHE', 'EXTENDED_ARG', 'PUSH_NULL'})
_LINE = '__firstlineno__'


@dataclass(frozen=True)
class Import:
    level: int
    name: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Static:
    """Of a code object and the ones nested in it: its bytes, the globals it reads, the modules it imports; ``chains``
    are dotted names that begin with a global or a closure variable, ``attributes`` all names that come after a dot.
    """

    content: bytes
    names: tuple[str, ...]
    imports: tuple[Import, ...]
    chains: tuple[tuple[str, ...], ...]
    attributes: frozenset[str]


_statics: dict[int, tuple[types.CodeType, Static]] = {}
_MAX_CACHED = 20_000


def static(code: types.CodeType) -> Static:
    """The static part of a code object. Cached by identity: code objects hash slowly, by content."""
    hit = _statics.get(id(code))
    if hit is not None:
        return hit[1]
    names: dict[str, None] = {}
    imports: dict[Import, None] = {}
    chains: dict[tuple[str, ...], None] = {}
    attributes: set[str] = set()
    for part in _nested(code):
        before: list[dis.Instruction] = []
        attributes.update(part.co_names)
        chain: tuple[str, ...] = ()
        for instruction in dis.get_instructions(part):
            if instruction.opname in _READS:
                names[instruction.argval] = None
                chain = (instruction.argval,)
            elif instruction.opname == 'LOAD_DEREF':
                chain = (instruction.argval,)
            elif instruction.opname in _DOTS and chain:
                chain = (*chain, instruction.argval)
                chains[chain] = None
            elif instruction.opname not in _BETWEEN:
                chain = ()
            if instruction.opname == 'IMPORT_NAME':
                imports[Import(before[-2].argval or 0, instruction.argval, tuple(before[-1].argval or ()))] = None
            if instruction.opname not in ('CACHE', 'EXTENDED_ARG'):
                before.append(instruction)
    result = Static(_content(code), tuple(names), tuple(imports), tuple(chains), frozenset(attributes))
    if len(_statics) >= _MAX_CACHED:
        _statics.clear()
    _statics[id(code)] = (code, result)
    return result


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _content(code: types.CodeType) -> bytes:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    # co_code is the code without the specialisations that running it leaves behind.
    plain = _LINE not in code.co_names
    body = pack(b'b', code.co_code) + _constant(code.co_consts) if plain else _without_line(code)
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    handlers = getattr(code, 'co_exceptiontable', b'')
    return pack_all(b'K', (body, _constant(counts), _constant(names), pack(b'b', handlers)))


def _without_line(code: types.CodeType) -> bytes:
    """A class body stores its line number (Python 3.13 and later), as a constant that must not count."""
    out: list[bytes] = []
    for instruction in dis.get_instructions(code):
        if instruction.argval == _LINE:
            out.pop()
        value = instruction.argval
        constant = instruction.opcode in dis.hasconst
        out.append(text(instruction.opname) + (_constant(value) if constant else text(repr(value))))
    return pack_all(b'L', out)


def _constant(value: Any) -> bytes:
    """A constant as it is written: whether a string names a file is a question for the values of a call."""
    kind = type(value)
    primitive = PRIMITIVES.get(kind)
    if primitive is not None:
        return primitive(value)
    if kind is str:
        return text(value)
    if kind is tuple:
        return pack_all(b't', map(_constant, value))
    if kind is frozenset:
        return pack_all(b'Z', sorted(map(_constant, value)))
    if kind is types.CodeType:
        return _content(value)
    return pack_all(b'v', (text(kind.__name__), text(repr(value))))  # Ellipsis, slices
