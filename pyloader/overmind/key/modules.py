"""First-party modules as source files: found without importing them, hashed, and searched for what they import."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from overmind.key import bytecode, trees
from overmind.key.origin import is_library_file
from overmind.key.wire import Refused

_MAX_HASHED = 64 << 20


@dataclass(frozen=True)
class _Source:
    digest: bytes
    imports: tuple[bytecode.Import, ...]
    # What each function and method does, by qualified name; branches may define several of a name.
    functions: dict[str, set[bytes]]


@dataclass(frozen=True)
class _Place:
    file: str | None
    folders: tuple[str, ...] | None  # of a package


_sources: dict[tuple[str, int, int, int, int], _Source] = {}


class Closure:
    """The first-party modules that are reachable from the ones that were added. Good for one fingerprint."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}  # module name -> file
        self._places: dict[str, _Place | None] = {}
        self._closures: dict[str, frozenset[str]] = {}

    def add(self, name: str) -> list[tuple[str, bytes]]:
        """Name and content digest of a first-party module and of all first-party modules that it imports."""
        found: dict[str, bytes] = {}
        todo = [name]
        while todo:
            name = todo.pop()
            if name in found or not self._is_ours(name):
                continue
            file = self._place(name).file  # type: ignore[union-attr]
            if file is None:
                found[name] = b''
            else:
                source = _read(file)
                _compare(name, source)
                found[name] = source.digest
                self.files[name] = file
                package = name if self._folders(name) is not None else name.rpartition('.')[0]
                todo.extend(self.names(source.imports, package))
            parent = name.rpartition('.')[0]
            if parent:
                todo.append(parent)
        return sorted(found.items())

    def names(self, imports: Iterable[bytecode.Import], package: str) -> list[str]:
        """First-party modules that import statements in a module of that package would load."""
        found = []
        for statement in imports:
            base = statement.name
            if statement.level:
                parts = package.split('.')
                parts = parts[: len(parts) - statement.level + 1]
                if not any(parts):
                    continue
                base = '.'.join([*parts, base] if base else parts)
            if not self._is_ours(base) or trees.digest(base) is not None:
                continue
            found.append(base)
            if self._folders(base) is not None:
                found += [f'{base}.{member}' for member in statement.members if self._is_ours(f'{base}.{member}')]
        return found

    def _is_ours(self, name: str) -> bool:
        top = name.partition('.')[0]
        if top in sys.stdlib_module_names or top in ('overmind', 'overmind_cext'):
            return False
        place = self._place(name)
        if place is None:
            return False
        where = [place.file] if place.file else [f + '/x' for f in place.folders or ()]
        return any(not is_library_file(path) for path in where)

    def _folders(self, name: str) -> tuple[str, ...] | None:
        place = self._place(name)
        return None if place is None else place.folders

    def _place(self, name: str) -> _Place | None:
        if name not in self._places:
            self._places[name] = self._find(name)
        return self._places[name]

    def _find(self, name: str) -> _Place | None:
        module = sys.modules.get(name)
        if module is not None:
            file = getattr(module, '__dict__', {}).get('__file__')
            folders = getattr(module, '__dict__', {}).get('__path__')
            if isinstance(file, str) or folders is not None:
                return _place(file if isinstance(file, str) else None, folders)
            return None
        parent, _, _ = name.rpartition('.')
        if parent and self._folders(parent) is None:
            return None
        try:
            if parent:
                # find_spec of a dotted name would import the parent.
                spec = importlib.machinery.PathFinder.find_spec(name, list(self._folders(parent) or ()))
            else:
                spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        if spec is None:
            return None
        return _place(spec.origin if spec.has_location else None, spec.submodule_search_locations)


def _place(file: str | None, folders: Iterable[str] | None) -> _Place:
    paths = None if folders is None else tuple(os.path.abspath(f) for f in folders)
    return _Place(os.path.abspath(file) if file else None, paths)


def _read(file: str) -> _Source:
    try:
        stat = os.stat(file)
    except OSError:
        return _Source(b'', (), {})
    key = (file, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    found = _sources.get(key)
    if found is None:
        found = _sources[key] = _parse(file, stat)
    return found


def _parse(file: str, stat: os.stat_result) -> _Source:
    if stat.st_size > _MAX_HASHED:
        return _Source(repr((stat.st_size, stat.st_mtime_ns, stat.st_ino)).encode(), (), {})
    try:
        with open(file, 'rb') as f:
            data = f.read()
    except OSError:
        return _Source(b'', (), {})
    imports: tuple[bytecode.Import, ...] = ()
    functions: dict[str, set[bytes]] = {}
    if file.endswith('.py'):
        with contextlib.suppress(SyntaxError, ValueError):
            body = compile(data, file, 'exec', dont_inherit=True)
            imports = bytecode.static(body).imports
            for name, content in _functions(body, ''):
                functions.setdefault(name, set()).add(content)
    return _Source(hashlib.sha256(data).digest(), imports, functions)


def _functions(body: types.CodeType, prefix: str) -> Iterator[tuple[str, bytes]]:
    for constant in body.co_consts:
        if isinstance(constant, types.CodeType):
            name = prefix + constant.co_name
            if constant.co_flags & inspect.CO_NEWLOCALS:
                yield name, bytecode.static(constant).content
            else:
                yield from _functions(constant, name + '.')


def _compare(name: str, source: _Source) -> None:
    """Refuses a module that was edited after its import: the file would vouch for code that does not run."""
    module = sys.modules.get(name)
    # Any other loader (pytest's, a type checker's) may rewrite what it reads.
    if type(getattr(module, '__loader__', None)) is not importlib.machinery.SourceFileLoader:
        return
    scope = vars(module)
    for label, contents in source.functions.items():
        value: object = scope.get(label.partition('.')[0])
        for part in label.split('.')[1:]:
            value = getattr(value, '__dict__', {}).get(part)
        code = getattr(getattr(value, '__func__', value), '__code__', None)
        if not isinstance(code, types.CodeType) or code.co_name != label.rpartition('.')[2]:
            continue
        if getattr(value, '__globals__', scope) is scope and bytecode.static(code).content not in contents:
            raise Refused(f'module {name} was edited after it was imported')
