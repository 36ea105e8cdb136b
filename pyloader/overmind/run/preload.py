"""Imports modules in advance, one by one, and sees to it that the process can still be forked."""

from __future__ import annotations

import builtins
import os
import sys
from dataclasses import dataclass

from overmind.run import blas
from overmind.run.devices import Devices, opened
from overmind.run.imports import Forbidden, Guard
from overmind.run.learnt import Learnt, site_folders

_IMPORTER = '<import in advance>'


@dataclass
class Preloaded:
    """What came of it."""

    loaded: frozenset[str]  # top-level names that a program would not have in sys.modules, or not yet
    missing: frozenset[str]  # top-level names that were looked for in vain
    again: bool  # something went wrong that can only be undone by a new process


def library_folders() -> tuple[str, ...]:
    """Where the standard library and installed distributions are."""
    paths = [os.path.dirname(os.__file__)]
    paths += [path for path in sys.path if os.path.basename(path) == 'lib-dynload']
    return tuple(os.path.join(path, '') for path in (*paths, *site_folders(sys.path)))


def preload(learnt: Learnt, folder: str, before: frozenset[str]) -> Preloaded:
    """Import what was learnt. Modules that turn out to be bad for it are noted there, with the reason."""
    bad: dict[str, str | None] = {}
    marker = _Marker(os.path.join(folder, 'importing'))
    crashed = marker.ended_here_twice()
    if crashed:
        learnt.add({crashed: 'ended the process when it was imported'})
    forbidden = {name: why for name, why in learnt.modules.items() if why}
    guard, devices, again = Guard(library_folders(), forbidden), Devices(), False
    sys.meta_path.insert(0, guard)
    try:
        with blas.one_thread():
            for name in learnt.wanted:
                if name in sys.modules:
                    continue
                marker.write(name)
                why, undo = _import(name)
                devices.cover()
                if why is None:
                    why = _why_not_forkable()
                    undo = why is not None
                if why is not None:
                    bad[name] = why
                    again = again or undo
                if why is not None and _threads() > 1:
                    break
    finally:
        sys.meta_path.remove(guard)
        devices.uncover()
    marker.remove()
    if bad:
        learnt.add(bad)
    tops = frozenset(name.partition('.')[0] for name in sys.modules)
    missing = frozenset(name.partition('.')[0] for name in guard.missing)
    return Preloaded(tops - before, missing - tops, again)


def _import(name: str) -> tuple[str | None, bool]:
    """Why a module is not to be imported in advance, and whether the attempt has left something behind."""
    size = _size_of_errors()
    # The statement stands in __main__, as in a program, so that a warning about whoever imports the module is shown.
    statement = compile(f'import {name}', _IMPORTER, 'exec')
    try:
        exec(statement, {'__name__': '__main__', '__builtins__': builtins})
    except Forbidden as e:
        return str(e), True
    except BaseException as e:
        return f'cannot be imported by itself ({type(e).__name__}: {str(e)[:200]!r})', True
    if name not in sys.modules:
        return 'is not in sys.modules after its import', False
    sys.stderr.flush()
    if _IMPORTER in _errors_from(size):
        return 'warns whoever imports it', True
    return None, False


def _why_not_forkable() -> str | None:
    if _threads() > 1:
        return 'starts threads when it is imported'
    device = opened()
    return f'opens {device} when it is imported' if device else None


def _threads() -> int:
    return len(os.listdir('/proc/self/task'))


def _size_of_errors() -> int:
    return os.fstat(2).st_size


def _errors_from(offset: int) -> str:
    with open('/proc/self/fd/2', 'rb') as file:
        file.seek(offset)
        return file.read().decode(errors='replace')


class _Marker:
    """A file that names the module whose import is under way, for the next start if this process does not survive.

    Once may be chance: somebody kills the process, or memory is full.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            with open(path, encoding='utf-8') as file:
                name, _, count = file.read().partition(' ')
            self._suspect, self._count = name, int(count or 0)
        except (FileNotFoundError, ValueError):
            self._suspect, self._count = '', 0

    def ended_here_twice(self) -> str | None:
        return self._suspect if self._count > 1 else None

    def write(self, name: str) -> None:
        with open(self._path, 'w', encoding='utf-8') as file:
            file.write(f'{name} {self._count + 1 if name == self._suspect else 1}')

    def remove(self) -> None:
        if os.path.exists(self._path):
            os.unlink(self._path)
