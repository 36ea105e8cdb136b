"""A call and its outcome as bytes, on their way to the process that fills and back (``OVERMIND_FILL=subprocess``).

Functions and classes go by name where another interpreter can import them; those of ``__main__`` and local ones go by
value, and what is a name of ``__main__`` here becomes one there.
"""

from __future__ import annotations

import importlib
import io
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from overmind.key.origin import MAIN
from overmind.patches.wrapper import original_of
from overmind.structure.modules import file_of, import_from
from overmind.structure.pickler import Definition, apart, found_in_main, main_by_value
from overmind.structure.unpickle import loads


@dataclass(slots=True)
class Parcel:
    """A pickle; where the modules are that cannot be imported by name, and whose code is in it by value."""

    data: bytes
    modules: dict[str, str]
    imports: list[str]

    def open(self) -> Any:
        """What is in it. Imports what it needs; raises whatever that raises."""
        for name in self.imports:
            # The key of a function depends on whose module it is of, which is known only of a loaded one.
            _import(name, self.modules)
        return loads(self.data, _nothing, self.modules)[0]


@dataclass(slots=True)
class Job:
    """What the worker is to do."""

    parent: int
    lock: int  # descriptor of locks/<id>, held by the parent
    store: tuple[str, float, str]
    id: str
    digest: str
    facts: list[tuple[str, str]]
    patched: bool
    points: list[Any] | None  # the project's own patch points; None where nothing is patched
    argv: list[str]
    main_file: str | None
    main_names: list[str]  # of the parent's __main__; those that the call does not refer to do not come along
    random: dict[str, Any]
    call: Parcel  # (fn, args, kwargs)


@dataclass(slots=True)
class Answer:
    """What came of it. ``outcome``: filled, different (the key is another one), refused (not to be cached), failed
    (the cache), raised (the loader did), missing (the loader needs more of ``__main__``)."""

    outcome: str
    text: str = ''
    id: str = ''
    facts: list[tuple[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    nbytes: int = 0
    shared: int = 0
    exception: Parcel | None = None


def parcel(obj: Any) -> Parcel:
    """Raises whatever pickling raises."""
    outer: list[Any] = []
    while True:
        out = io.BytesIO()
        pickler = _Pickler(out)
        with main_by_value():
            pickler.dump((obj, outer))
        if len(pickler.outer) == len(outer):
            return Parcel(out.getvalue(), pickler.modules, sorted(pickler.imports))
        outer = list(pickler.outer.values())


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out, protocol=5)
        self.modules: dict[str, str] = {}
        self.imports: set[str] = set()
        self.outer: dict[int, Any] = {}  # classes of __main__ that have others in them, which are found through them
        self._definitions: dict[int, Definition] = {}

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, (type, types.FunctionType)):
            return super().reducer_override(obj)
        module = getattr(obj, '__module__', None) or ''
        path = file_of(module)
        if path is not None:
            self.modules[module] = path
        if module in MAIN and found_in_main(obj):
            name, dot, _ = obj.__qualname__.partition('.')
            if not dot:
                definition = self._definitions.setdefault(id(obj), Definition(self, obj))
                return into_main, (name, definition)
            if isinstance(obj, type):
                found = getattr(sys.modules['__main__'], name)
                self.outer[id(found)] = found
        if isinstance(obj, types.FunctionType) and _is_behind_wrapper(module, obj):
            return behind_wrapper, (module, obj.__qualname__)
        return self.definition(obj)

    def definition(self, obj: Any) -> Any:
        parts = super().reducer_override(obj)
        if isinstance(parts, tuple) and obj.__module__ in sys.modules and obj.__module__ not in MAIN:
            self.imports.add(obj.__module__)
        return apart(obj, parts)


def _import(name: str, modules: dict[str, str]) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        if name in modules:
            import_from(name, modules[name])


def _nothing(pid: Any) -> Any:
    raise ValueError(f'a persistent id in a call: {pid!r}')


def _find(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split('.'):
        found = getattr(found, part, None)
    return getattr(found, '__func__', found)


def _is_behind_wrapper(module: str, fn: types.FunctionType) -> bool:
    return original_of(_find(module, fn.__qualname__)) is fn


def behind_wrapper(module: str, name: str) -> Callable[..., Any]:
    """The library's function of that name, patched here or not."""
    importlib.import_module(module)
    found = _find(module, name)
    fn: Callable[..., Any] = original_of(found) or found
    return fn


def into_main(name: str, copy: Any) -> Any:
    """A class or function of the caller's ``__main__``: ours of that name; if there is none, the copy becomes it."""
    return sys.modules['__main__'].__dict__.setdefault(name, copy)
