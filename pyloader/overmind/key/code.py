"""The fingerprint of a user's own code: what a function does, and every first-party thing that it reaches.

Libraries count by name only, since their versions are checked elsewhere. The walk is a Merkle hash over functions and
classes; inside a cycle a node is named by its position on the path from the root.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import logging
import os
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from overmind.key import canonical, trees
from overmind.key.origin import common_name, is_first_party, is_library_file
from overmind.key.wire import Refused, pack, pack_all, text, type_name

if TYPE_CHECKING:
    from overmind.key import bytecode
    from overmind.key.canonical import Reference
    from overmind.key.modules import Closure

__all__ = ['Code', 'Walker', 'fingerprint', 'is_first_party']


class Code(NamedTuple):
    """``digest`` in hex; ``files`` are the first-party source files that it covers."""

    digest: str
    files: list[str]


def fingerprint(fn: object, reference: Reference | None = None) -> Code:
    """The fingerprint of a function, class, method, partial or module-level callable."""
    reference = reference or canonical.no_reference
    walker = Walker(reference)
    data = canonical.Encoder(reference, walker).encode(fn, 'code')
    return Code(hashlib.sha256(data).hexdigest(), sorted(walker.files))


_MISSING = object()
_MAX_NODES = 20_000
# What a class carries about its text, its instances' layout, or caches of the interpreter.
_UNTOLD = frozenset({
    '__dict__', '__weakref__', '__doc__', '__module__', '__qualname__', '__firstlineno__', '__static_attributes__',
    '__annotations__', '__annotate__', '__annotate_func__', '__annotations_cache__', '__conditional_annotations__',
    '__classdictcell__', '_abc_impl', '__parameters__', '__orig_bases__', '__dataclass_fields__',
    '__dataclass_params__', '__match_args__', '__type_params__', '__subclasshook__', '__slotnames__',
})  # fmt: skip
_ENUM_UNTOLD = frozenset({'_member_map_', '_member_names_', '_value2member_map_', '_unhashable_values_', '__new__',
                          '_hashable_values_', '_unhashable_values_map_', '_generate_next_value_'})  # fmt: skip
# Globals that steer no result: they enter by the name of their type.
_LENIENT = (
    '_thread.', 'threading.', 'typing.', 'typing_extensions.', 'logging.',
    '_io.TextIOWrapper', 'os._Environ', 'types.GenericAlias', 'types.UnionType', 'warnings.', 'weakref.', '_weakref.',
    'torch._ops.',
)  # fmt: skip
# What __slots__ and C leave in a class.
_LAYOUT = (types.MemberDescriptorType, types.GetSetDescriptorType)


class Walker:
    """Hashes functions and classes, each once."""

    def __init__(self, reference: Reference) -> None:
        self.files: set[str] = set()
        self._encoder = canonical.Encoder(reference, self)
        self._done: dict[int, tuple[object, bytes]] = {}
        self._path: dict[int, int] = {}
        self._count = 0

    @functools.cached_property
    def _modules(self) -> Closure:
        from overmind.key.modules import Closure  # a key of library code alone does without

        return Closure()

    def reference(self, value: Any) -> bytes:
        """The bytes that stand for a function or class: its name, and its code unless a library owns it."""
        done = self._done.get(id(value))
        if done is not None:
            return done[1]
        module, qualname = _name_of(value)
        ours = _is_ours(value, module)
        tree = trees.digest(module) if ours and module != '__main__' else None
        if tree is not None and _resolves(value, module, qualname):
            result = pack_all(b'g', (text(module), text(qualname), tree))
        elif not ours and _resolves(value, module, qualname):
            result = pack_all(b'g', (text(module), text(qualname)))
        else:
            result = self._own(value, module, qualname)
        self._done[id(value)] = (value, result)
        return result

    def _own(self, value: Any, module: str, qualname: str) -> bytes:
        position = self._path.get(id(value))
        if position is not None:
            return pack(b'^', position.to_bytes(4, 'little'))
        self._count += 1
        if self._count > _MAX_NODES:
            raise Refused('it reaches too much code')
        self._path[id(value)] = len(self._path)
        # The containers that hold this value have nothing to do with how deep its own code nests.
        outer, self._encoder._open = self._encoder._open, set()
        try:
            with self._reducing(False):
                body = self._class(value) if isinstance(value, type) else self._function(value)
        except Refused as e:
            raise e.at(f' -> {module}:{qualname}') from None
        finally:
            self._encoder._open = outer
            del self._path[id(value)]
        names = (text(module), text(qualname))
        return pack(b'G', hashlib.sha256(b''.join((*names, body))).digest())

    def _member(self, label: str, value: Any) -> bytes:
        try:
            return self._encoder.any(value)
        except Refused as e:
            raise e.at(f', {label}') from None

    # ---- functions

    def _function(self, fn: Any) -> bytes:
        from overmind.key import bytecode

        static = bytecode.static(fn.__code__)
        scope: dict[str, Any] = fn.__globals__
        owner = scope.get('__name__') or ''
        parts = [static.content, self._member('defaults', fn.__defaults__), self._member('defaults', fn.__kwdefaults__)]
        ours = is_first_party(owner) or owner not in sys.modules
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                parts.append(b'-')
                continue
            with self._reducing(not ours):  # torch.no_grad() keeps an object of its own beside the function
                parts.append(text(name) + self._global(f'closure variable {name}', content))
            parts.extend(self._settings(name, content, static))
        if ours:
            self._note(fn.__code__.co_filename)
            for name in static.names:
                value = scope.get(name, _MISSING)
                if value is _MISSING:
                    known = hasattr(builtins, name)
                    parts.append(text(name) + (b'+' if known else b'-'))
                elif not (name.startswith('__') and name.endswith('__')) or name == '__file__':
                    parts.append(text(name) + self._global(f'global {name}', value))
                    parts.extend(self._settings(name, value, static))
            attributes = {k: v for k, v in vars(fn).items() if k != '__wrapped__'}
            parts.extend(text(k) + self._global(f'attribute {k}', v) for k, v in sorted(attributes.items()))
            package = scope.get('__package__') or owner.rpartition('.')[0]
            parts.extend(map(self._module, self._modules.names(static.imports, package)))
        return pack_all(b'F', parts)

    def _settings(self, name: str, module: Any, static: bytecode.Static) -> Iterator[bytes]:
        """What the code uses of a module of the user's: a program sets values at run time (cfg.scale = 2), and a module
        reads some from files when it is imported; no hash of its source shows either."""
        if not isinstance(module, types.ModuleType) or not is_first_party(module):
            return
        used = set()
        for chain in static.chains:
            if chain[0] == name and (found := _through(module, chain)) is not None:
                label, value = found
                if label not in used:
                    used.add(label)
                    yield text(label) + self._global(label, value)
        for attribute in sorted(static.attributes - {label.rpartition('.')[2] for label in used}):
            # Perhaps of this module, under another name (m = cfg; m.scale), and perhaps of something else.
            value = vars(module).get(attribute, _MISSING)
            if value is not _MISSING and not isinstance(value, types.ModuleType):
                with contextlib.suppress(Refused):
                    yield text(attribute) + self._global(f'{name}.{attribute}', value)

    @contextlib.contextmanager
    def _reducing(self, on: bool) -> Iterator[None]:
        before, self._encoder.reducing = self._encoder.reducing, on
        try:
            yield
        finally:
            self._encoder.reducing = before

    def _note(self, file: str) -> None:
        path = os.path.abspath(file)
        if not file.startswith('<') and not is_library_file(path) and os.path.exists(path):
            self.files.add(path)

    def _global(self, label: str, value: Any) -> bytes:
        if isinstance(value, types.ModuleType):
            name = value.__name__
            if not is_first_party(value):
                return text(name)
            tree = trees.digest(name)
            return self._module(name) if tree is None else text(name) + pack(b'b', tree)
        kind = type(value)
        if kind is functools._lru_cache_wrapper:
            return self._member(label, value.__wrapped__)
        if kind is contextvars.ContextVar:
            return self._member(label, (value.name, value.get(None)))
        if kind is object:  # a sentinel: nobody asks but who it is
            return text('object')
        own = f'{kind.__module__}.{kind.__qualname__}'
        if kind not in (types.FunctionType, types.MethodType, types.BuiltinFunctionType) and (
            own.startswith(_LENIENT) or isinstance(value, (logging.Logger, logging.LoggerAdapter))
        ):
            return text(own)
        return self._member(label, value)

    def _module(self, name: str) -> bytes:
        parts = [text(n) + pack(b'b', digest) for n, digest in self._modules.add(name)]
        self.files.update(self._modules.files.values())
        return pack_all(b'M', [text(name), *parts])

    # ---- classes

    def _class(self, cls: type) -> bytes:
        parts = [self._member('base', base) for base in cls.__bases__]
        parts.append(self._member('metaclass', type(cls)))
        members = getattr(cls, '__members__', None) if '_member_map_' in cls.__dict__ else None
        untold = _UNTOLD
        if members is not None:
            untold = untold | _ENUM_UNTOLD | members.keys()
            for name, member in members.items():
                parts.append(text(name) + self._attribute(name, member.value))
        if '__dataclass_fields__' in cls.__dict__:
            params = cls.__dict__.get('__dataclass_params__')
            parts.append(text(repr(params)))
            for field in dataclasses.fields(cls):
                parts.append(text(f'{field.name} {field.init} {field.kw_only}'))
                parts.extend(self._attribute(field.name, part) for part in (field.default, field.default_factory))
        for name in sorted(cls.__dict__):
            value = cls.__dict__[name]
            if name in untold or (isinstance(value, types.FunctionType) and _is_generated(cls, value)):
                continue
            parts.append(text(name) + self._attribute(name, value))
        return pack_all(b'Y', parts)

    def _attribute(self, name: str, value: Any) -> bytes:
        """A class attribute. Descriptors that only say how instances are laid out count by their type."""
        if isinstance(value, (staticmethod, classmethod)):
            return text(type(value).__name__) + self._attribute(name, value.__func__)
        if isinstance(value, property):
            return b'@' + b''.join(self._attribute(name, f) for f in (value.fget, value.fset, value.fdel))
        if isinstance(value, functools.cached_property):
            return b'@' + self._attribute(name, value.func)
        if isinstance(value, functools.partialmethod):
            parts = (value.func, value.args, value.keywords)
            return b'%' + b''.join(self._attribute(name, part) for part in parts)
        if isinstance(value, (types.FunctionType, type)):
            return self._member(value.__qualname__, value)
        if isinstance(value, _LAYOUT):
            return text(type_name(type(value)))
        with self._reducing(True):
            plain = dict(value) if isinstance(value, types.MappingProxyType) else value
            return self._global(f'class attribute {name}', plain)


def _through(module: types.ModuleType, chain: tuple[str, ...]) -> tuple[str, Any] | None:
    """What a dotted name leads to, through the user's modules: its name as far as there, and the value."""
    value: Any = module
    for i, part in enumerate(chain[1:], 2):
        value = vars(value).get(part, _MISSING)
        if value is _MISSING:
            return None
        if not isinstance(value, types.ModuleType):
            return '.'.join(chain[:i]), value
        if not is_first_party(value):
            return None
    return None


def _name_of(value: Any) -> tuple[str, str]:
    module = common_name(getattr(value, '__module__', None) or '')
    return module, getattr(value, '__qualname__', None) or type(value).__qualname__


def _is_ours(value: Any, module: str) -> bool:
    if isinstance(value, type):
        return is_first_party(module)
    # functools.wraps copies __module__; where the code really is from, its globals tell.
    scope = getattr(value, '__globals__', None)
    owner = scope.get('__name__') if isinstance(scope, dict) else module
    return is_first_party(module) or is_first_party(owner or module)


def _resolves(value: Any, module: str, qualname: str) -> bool:
    """Whether the name leads back to the value, so that a library's version says all about it."""
    found: Any = sys.modules.get(module)
    for part in qualname.split('.'):
        found = getattr(found, part, None)
        if found is None:
            return False
    found = getattr(found, '__func__', found)
    return found is value or getattr(found, '__wrapped__', None) is value


def _is_generated(cls: type, fn: types.FunctionType) -> bool:
    """Whether dataclasses wrote the method; the fields, which are encoded, say all about it."""
    return '__dataclass_fields__' in cls.__dict__ and fn.__name__.startswith('__') and (
        fn.__code__.co_filename == '<string>' or fn.__code__.co_filename.endswith('reprlib.py')
    ) and fn.__name__ != '__post_init__'  # fmt: skip
