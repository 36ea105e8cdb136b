"""What a program reads without an audit event that tells enough: files below an open folder (``dir_fd``), environment
variables, whether a file is there, and modules that are loaded already. The functions for these are wrapped while a
load is recorded.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil  # noqa: F401  its import compares functions of os, which must be the original ones then
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

# For us ourselves, also while it is wrapped.
stat = os.stat


class Listener(Protocol):
    """Who is told; none of these may raise."""

    def opened(self, path: str, flags: int) -> None: ...

    def looked_for(self, path: str) -> None: ...

    def read(self, variable: str) -> None: ...

    def read_all(self) -> None: ...

    def wrote(self, variable: str) -> None: ...

    def imported(self, module: str) -> None: ...


class _State(threading.local):
    by_folder = False


_state = _State()


def opens_by_folder() -> bool:
    """Whether this thread is in an ``os.open`` of a path below an open folder, which its audit event does not tell."""
    return _state.by_folder


def of_descriptor(fd: int) -> str:
    """The path of an open file or folder."""
    return os.readlink(f'/proc/self/fd/{fd}')


def install(listener: Listener) -> Callable[[], None]:
    """Wraps; returns what undoes it."""
    undo = [_wrap_open(listener), _wrap_stat(listener), *_wrap_environment(listener), *_wrap_import(listener)]

    def all_of_it() -> None:
        for step in undo:
            step()

    return all_of_it


def _wrap_open(listener: Listener) -> Callable[[], None]:
    original = os.open

    @functools.wraps(original)
    def wrapper(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is None:
            return original(path, flags, mode)
        if isinstance(path, (str, bytes, os.PathLike)):
            listener.opened(os.path.join(of_descriptor(dir_fd), os.fsdecode(path)), flags)
        _state.by_folder = True
        try:
            return original(path, flags, mode, dir_fd=dir_fd)
        finally:
            _state.by_folder = False

    return _replace(os, 'open', original, wrapper)


def _wrap_stat(listener: Listener) -> Callable[[], None]:
    @functools.wraps(stat)
    def wrapper(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        if isinstance(path, (str, bytes, os.PathLike)):
            name = os.fsdecode(path)
            listener.looked_for(name if dir_fd is None else os.path.join(of_descriptor(dir_fd), name))
        return stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    return _replace(os, 'stat', stat, wrapper)


def _wrap_environment(listener: Listener) -> Iterator[Callable[[], None]]:
    kind: Any = type(os.environ)

    def getitem(self: Any, key: Any) -> Any:
        listener.read(os.fsdecode(key))
        return get(self, key)

    def setitem(self: Any, key: Any, value: Any) -> None:
        listener.wrote(os.fsdecode(key))
        put(self, key, value)

    def delitem(self: Any, key: Any) -> None:
        listener.wrote(os.fsdecode(key))
        remove(self, key)

    def iterate(self: Any) -> Any:
        listener.read_all()
        return keys(self)

    get, put, remove, keys = kind.__getitem__, kind.__setitem__, kind.__delitem__, kind.__iter__
    yield _replace(kind, '__getitem__', get, getitem)
    yield _replace(kind, '__setitem__', put, setitem)
    yield _replace(kind, '__delitem__', remove, delitem)
    yield _replace(kind, '__iter__', keys, iterate)


def _wrap_import(listener: Listener) -> Iterator[Callable[[], None]]:
    original = importlib.import_module

    @functools.wraps(original)
    def wrapper(name: str, package: str | None = None) -> Any:
        found = original(name, package)
        listener.imported(getattr(found, '__name__', name))
        return found

    # Where it was imported by name as well.
    for module in list(sys.modules.values()):
        names = getattr(module, '__dict__', None)
        if isinstance(names, dict) and names.get('import_module') is original:
            yield _replace(module, 'import_module', original, wrapper)


def _replace(owner: Any, name: str, before: Any, after: Any) -> Callable[[], None]:
    setattr(owner, name, after)

    def undo() -> None:
        if vars(owner)[name] is after:  # somebody else's wrapper stays; ours in it has nobody to tell
            setattr(owner, name, before)

    return undo
