"""The files that a load reads: recorded while it runs, compared before a later hit."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Container, Sequence
from types import TracebackType
from typing import Any

from overmind.key import folders, modules, unaudited
from overmind.key.absolute import absolute
from overmind.key.compare import (
    ABSENT,
    VARIABLE,
    WORKING_DIRECTORY,
    Listing,
    Source,
    check,
    digest,
    look,
    names,
    of_names,
)
from overmind.key.natives import Patches
from overmind.key.origin import MAIN, is_first_party, is_library_file
from overmind.key.wire import Refused

__all__ = ['WORKING_DIRECTORY', 'Listing', 'Recorder', 'Source', 'check', 'note']

MAX_RECORDED = 500
# Kernels stamp files with a clock that ticks every 4 or 10 ms: two writes within a tick look like one.
_TICK = 20_000_000

_DATA = (
    '.json', '.safetensors', '.bin', '.pt', '.pth', '.ckpt', '.gguf', '.model', '.txt', '.msgpack', '.py', '.jinja',
)  # fmt: skip
# Not /dev: /dev/shm holds models, and a device is no regular file.
# What of this package is imported while a load is recorded says nothing about the load.
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + '/'
_SYSTEM = ('/proc/', '/sys/', _OWN)
_CONFIGURATION = '/etc/'  # of the system, which libraries read; what the program reads there is an input
_WRITES = os.O_WRONLY | os.O_RDWR
# Modules through which a program reads an environment variable; what others read for it decides nothing, as a rule.
_THROUGH = frozenset({'os', 'collections.abc', 'posixpath', 'pathlib', 'pathlib._local'})
_OURS = frozenset({__name__, unaudited.__name__})

# ---- recording

_lock = threading.Lock()
_active: tuple[Recorder, ...] = ()
_hooked = False


def note(path: str | os.PathLike[str]) -> None:
    """Tells every active recorder that a file was, or is about to be, read."""
    for recorder in _active:
        recorder._opened(os.fspath(path), 0)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    # Runs for every audit event of the process, for ever: the first test must be the cheap one.
    if not _active:
        return
    handler = _EVENTS.get(event)
    if handler is None:
        return
    # An exception here would become the program's.
    with contextlib.suppress(Exception):
        handler(args)


def _on_open(args: tuple[Any, ...]) -> None:
    path, _, flags = args
    if isinstance(path, (str, bytes, os.PathLike)) and not unaudited.opens_by_folder():
        for recorder in _active:
            recorder._opened(os.fsdecode(path), flags)


def _on_folder(args: tuple[Any, ...]) -> None:
    folder = args[0] if args and args[0] is not None else '.'
    if isinstance(folder, int):
        folder = unaudited.of_descriptor(folder)
    if isinstance(folder, (str, bytes, os.PathLike)) and _asked_by_program():
        for recorder in _active:
            recorder._looked_into(os.fsdecode(folder))


def _on_database(args: tuple[Any, ...]) -> None:
    if isinstance(args[0], (str, bytes, os.PathLike)):
        note(os.fsdecode(args[0]))


def _asked_by_program(through: Container[str] = sys.stdlib_module_names) -> bool:
    """Whether the user's own code, directly or through the standard library, does this; libraries probe for a lot that
    decides nothing, and an import lists the folders of sys.path."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get('__name__') or ''
        if name not in _OURS:
            if '_bootstrap' in name or name.startswith('_frozen_importlib'):
                return False
            if name in MAIN or (name not in through and name.partition('.')[0] not in through):
                return is_first_party(name)
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _on_import(args: tuple[Any, ...]) -> None:
    if isinstance(args[1], str):  # an extension module; of other modules the source or .pyc is opened
        note(args[1])


def _on_destination(args: tuple[Any, ...]) -> None:
    for recorder in _active:
        recorder._appeared.add(os.path.abspath(os.fsdecode(args[1])))


def _on_mkdir(args: tuple[Any, ...]) -> None:
    for recorder in _active:
        recorder._appeared.add(os.path.abspath(os.fsdecode(args[0])))


_EVENTS = {
    'open': _on_open, 'import': _on_import, 'os.rename': _on_destination, 'os.link': _on_destination,
    'os.symlink': _on_destination, 'os.mkdir': _on_mkdir, 'os.listdir': _on_folder, 'os.scandir': _on_folder,
    'sqlite3.connect': _on_database,
}  # fmt: skip


class _Program(unaudited.Listener):
    """Passes on to the active recorders what the program reads in other ways than by opening a file."""

    def opened(self, path: str, flags: int) -> None:
        with contextlib.suppress(Exception):
            for recorder in _active:
                recorder._opened(path, flags)

    def looked_for(self, path: str) -> None:
        with contextlib.suppress(Exception):
            if _asked_by_program():
                for recorder in _active:
                    recorder._looked_for(path)

    def read(self, variable: str) -> None:
        with contextlib.suppress(Exception):
            if _asked_by_program(_THROUGH):
                for recorder in _active:
                    recorder._read(variable)

    def read_all(self) -> None:
        """The single reads that follow are those of a copy, such as the one for a child process."""
        with contextlib.suppress(Exception):
            if _asked_by_program(_THROUGH):
                everything = {os.fsdecode(name) for name in vars(os.environ)['_data']}
                for recorder in _active:
                    recorder._copied.update(everything - recorder._variables.keys())

    def wrote(self, variable: str) -> None:
        for recorder in _active:
            recorder._set.add(variable)

    def imported(self, module: str) -> None:
        """By a name that the code made: of the user's modules, also those that were loaded already."""
        with contextlib.suppress(Exception):
            if _active and is_first_party(module):
                closure = modules.Closure()
                try:
                    closure.add(module)
                except Refused as e:
                    for recorder in _active:
                        recorder.changed = recorder.changed or e.reason
                for file in closure.files.values():
                    note(file)


_patches = Patches(note, functools.partial(unaudited.install, _Program()))


class Recorder:
    """Records what the process reads while it is entered. ``changed`` says why the record cannot be trusted.

    ``paths`` are files and folders among the arguments: files are inputs in any case; of folders the names are, and
    the data files, because a library may open them in a way that nobody sees. Paths below ``ignore`` never count.
    """

    def __init__(self, paths: Sequence[str] = (), ignore: Sequence[str] = ()) -> None:
        self.changed = ''
        self._paths = [os.path.abspath(p) for p in paths]
        self._ignore = tuple(os.path.abspath(p).rstrip('/') + '/' for p in ignore) + _SYSTEM
        self._seen: dict[str, Source | None] = {}
        self._written: set[str] = set()
        self._appeared: set[str] = set()
        self._folders: dict[str, list[str]] = {}
        self._listings: list[Listing] = []
        self._large: list[str] = []
        self._relative = False
        self._listed: set[str] = set()
        self._absent: set[str] = set()
        self._looked: dict[str, Source] = {}
        self._variables: dict[str, Listing] = {}
        self._set: set[str] = set()
        self._copied: set[str] = set()

    def __enter__(self) -> Recorder:
        global _active, _hooked
        self._working = Listing(WORKING_DIRECTORY, _working_directory())
        self._look_at_arguments()
        with _lock:
            if not _hooked:
                sys.addaudithook(_hook)
                _hooked = True
            _active = (*_active, self)
        _patches.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _active
        _patches.release()
        with _lock:
            _active = tuple(r for r in _active if r is not self)
        self._finish()

    def sources(self) -> list[Source]:
        absent = [Source(path, 0, 0, 0, ABSENT) for path in sorted(self._absent)]
        return [s for _, s in sorted(self._seen.items()) if s is not None] + absent

    def listings(self) -> list[Listing]:
        return self._listings

    # ---- arguments

    def _look_at_arguments(self) -> None:
        for path in self._paths:
            if not os.path.isdir(path):
                self._add(path)
                continue
            tree = folders.tree(path)
            if tree is None:
                # Too large to read on every hit: what is really opened in it, and the names beside that.
                self._large.append(path.rstrip('/') + '/')
                continue
            self._folders.update({folder: names(found) for folder, (found, _) in tree.items()})
            files = [os.path.join(f, name) for f, (_, names) in tree.items() for name in names if name.endswith(_DATA)]
            if len(files) <= MAX_RECORDED:
                for file in files:
                    self._add(file)

    # ---- while the load runs; called from any thread

    def _opened(self, raw: str, flags: int) -> None:
        path = absolute(raw)
        if path in self._seen:
            return
        access = flags & _WRITES
        appends = access == os.O_RDWR and not flags & os.O_TRUNC and os.path.lexists(path)
        if not appends and (access == os.O_WRONLY or flags & (os.O_CREAT | os.O_TRUNC)):
            if not os.path.lexists(path) or flags & os.O_TRUNC:
                self._written.add(path)
            self._looked.pop(path, None)
            return
        if flags & os.O_DIRECTORY:
            return
        if path in self._written or not self._counts(path):
            return
        if path.endswith('.pyc'):
            # A module that is imported from its cache: the source is what people edit.
            with contextlib.suppress(ValueError, NotImplementedError):
                path = importlib.util.source_from_cache(path)
        if is_library_file(path):
            return
        if not os.path.isabs(raw) and not self._is_argument(path):
            self._relative = True
        self._add(path)

    def _is_argument(self, path: str) -> bool:
        return any(path == p or path.startswith(p.rstrip('/') + '/') for p in self._paths)

    def _add(self, path: str) -> None:
        if path in self._seen:
            return
        source = look(path)
        if source is not None:
            age = time.time_ns() - max(source.ctime_ns, source.mtime_ns)
            if 0 <= age < _TICK and path not in self._appeared:
                # Read it only when the clock has moved on, or a write after this would leave no trace.
                time.sleep((_TICK - age) / 1e9)
                source = look(path)
        elif not os.path.lexists(path) and _asked_by_program():
            self._absent.add(path)
        self._seen.setdefault(path, source)

    def _counts(self, path: str) -> bool:
        return not path.startswith(self._ignore) and (not path.startswith(_CONFIGURATION) or _asked_by_program())

    def _looked_for(self, raw: str) -> None:
        """A file that is there counts with its content too: a size or a time may have been asked for."""
        path = absolute(raw)
        if path in self._seen or path in self._written or path in self._appeared or not self._counts(path):
            return
        source = look(path)
        if is_library_file(path) or (source is None and os.path.lexists(path)):
            return
        if not os.path.isabs(raw) and not self._is_argument(path):
            self._relative = True
        if source is not None:
            self._looked.setdefault(path, source)
        else:
            self._absent.add(path)

    def _read(self, variable: str) -> None:
        if variable in self._copied:
            self._copied.discard(variable)
        elif variable not in self._variables and variable not in self._set:
            path = VARIABLE + variable
            self._variables[variable] = Listing(path, digest(path))

    def _looked_into(self, raw: str) -> None:
        path = absolute(raw)
        if not path.startswith(self._ignore) and not is_library_file(os.path.join(path, 'x')):
            self._listed.add(path)

    # ---- at the end

    def _finish(self) -> None:
        for path, source in self._looked.items():
            if not self._is_ours(path):
                self._seen.setdefault(path, source)
        for path, before in list(self._seen.items()):
            if before is None:
                continue
            now = look(path)
            if now is None and path in self._appeared:
                self._seen[path] = None
            elif now != before:
                self.changed = self.changed or f'{path}: {"modified" if now else "removed"} during the load'
        for folder, earlier in self._folders.items():
            try:
                later = names(os.listdir(folder))
            except OSError:
                self.changed = self.changed or f'{folder}: removed during the load'
                continue
            ours = {n for n in set(later) ^ set(earlier) if self._is_ours(os.path.join(folder, n))}
            if set(later) - ours != set(earlier) - ours:
                self.changed = self.changed or f'{folder}: files came or went during the load'
            self._listings.append(Listing(folder, of_names(later)))
        for folder in sorted({os.path.dirname(p) for p in self._seen if p.startswith(tuple(self._large))}):
            with contextlib.suppress(OSError):
                self._listings.append(Listing(folder, digest(folder)))
        for folder in sorted(self._listed - self._folders.keys()):
            with contextlib.suppress(OSError):
                self._listings.append(Listing(folder, digest(folder)))
        self._absent = {p for p in self._absent if not os.path.lexists(p) and not self._is_ours(p)}
        if self._relative:
            self._listings.append(self._working)
        self._listings += self._variables.values()

    def _is_ours(self, path: str) -> bool:
        return path in self._written or path in self._appeared


def _working_directory() -> str:
    try:
        return digest(WORKING_DIRECTORY)
    except FileNotFoundError:  # it was removed
        return ''
