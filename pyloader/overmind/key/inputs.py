"""The files that a load reads: recorded while it runs, compared before a later hit."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import stat as stats
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from overmind.key.absolute import absolute
from overmind.key.natives import Patches
from overmind.key.origin import is_first_party, is_library_file

MAX_FILES = 2000
MAX_DEPTH = 6
MAX_RECORDED = 500
# Kernels stamp files with a clock that ticks every 4 or 10 ms: two writes within a tick look like one.
_TICK = 20_000_000

_DATA = (
    '.json', '.safetensors', '.bin', '.pt', '.pth', '.ckpt', '.gguf', '.model', '.txt', '.msgpack', '.py', '.jinja',
)  # fmt: skip
# Not /dev: /dev/shm holds models, and a device is no regular file.
_SYSTEM = ('/proc/', '/sys/', '/etc/')
_WRITES = os.O_WRONLY | os.O_RDWR
# The working directory, as a Listing: recorded where a relative path was opened that no argument covers.
WORKING_DIRECTORY = '.'


class Source(NamedTuple):
    """A file that the load read, as it was then."""

    path: str
    nbytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class Listing(NamedTuple):
    """The names in a folder that the load looked into."""

    path: str
    digest: str


# ---- what a hit compares


def check(sources: Iterable[Source], listings: Iterable[Listing]) -> str | None:
    """The first difference between the recorded inputs and the ones on disk, in words, or None."""
    stat = os.stat
    for source in sources:
        try:
            s = stat(source.path)
        except OSError as e:
            if source.inode == _ABSENT:
                continue
            return f'{source.path}: {e.strerror}'
        if source.inode == _ABSENT:
            return f'{source.path}: it was not there'
        if (
            s.st_ctime_ns != source.ctime_ns
            or s.st_size != source.nbytes
            or s.st_ino != source.inode
            or s.st_mtime_ns != source.mtime_ns
        ):
            return f'{source.path}: modified'
    for listing in listings:
        try:
            digest = _digest(listing.path)
        except OSError as e:
            return f'{listing.path}: {e.strerror}'
        if digest != listing.digest:
            where = 'working directory' if listing.path == WORKING_DIRECTORY else listing.path
            return f'{where}: {"another one" if listing.path == WORKING_DIRECTORY else "files came or went"}'
    return None


def _digest(folder: str) -> str:
    if folder == WORKING_DIRECTORY:
        return _hash([os.getcwd()])
    return _hash(_names(os.listdir(folder)))


def _names(found: Iterable[str]) -> list[str]:
    return sorted(name for name in found if name != '__pycache__')


def _hash(names: Iterable[str]) -> str:
    return hashlib.sha256(b'\0'.join(map(os.fsencode, names))).hexdigest()


# ---- recording

# The inode of a file that was looked for and not found; no file has this one.
_ABSENT = 0

_lock = threading.Lock()
_active: tuple[Recorder, ...] = ()
_hooked = False


def note(path: str | os.PathLike[str]) -> None:
    """Tells every active recorder that a file was, or is about to be, read."""
    for recorder in _active:
        recorder._opened(os.fspath(path), 0)


def _note_all(path: str) -> None:
    note(path)


_patches = Patches(_note_all)


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
    if isinstance(path, (str, bytes, os.PathLike)):
        for recorder in _active:
            recorder._opened(os.fsdecode(path), flags)


def _on_folder(args: tuple[Any, ...]) -> None:
    folder = args[0] if args and args[0] is not None else '.'
    if isinstance(folder, (str, bytes, os.PathLike)) and _asked_by_program():
        for recorder in _active:
            recorder._looked_into(os.fsdecode(folder))


def _on_database(args: tuple[Any, ...]) -> None:
    if isinstance(args[0], (str, bytes, os.PathLike)):
        note(os.fsdecode(args[0]))


def _asked_by_program() -> bool:
    """Whether the user's own code, directly or through the standard library, does this; libraries probe for a lot that
    decides nothing, and an import lists the folders of sys.path."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get('__name__') or ''
        if name != __name__:
            if '_bootstrap' in name or name.startswith('_frozen_importlib'):
                return False
            if name.partition('.')[0] not in sys.stdlib_module_names or name == '__main__':
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

    def __enter__(self) -> Recorder:
        global _active, _hooked
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
        absent = [Source(path, 0, 0, 0, _ABSENT) for path in sorted(self._absent)]
        return [s for _, s in sorted(self._seen.items()) if s is not None] + absent

    def listings(self) -> list[Listing]:
        return self._listings

    # ---- arguments

    def _look_at_arguments(self) -> None:
        for path in self._paths:
            if not os.path.isdir(path):
                self._add(path)
                continue
            tree = _tree(path)
            if tree is None:
                # Too large to read on every hit: what is really opened in it, and the names beside that.
                self._large.append(path.rstrip('/') + '/')
                continue
            self._folders.update({folder: _names(names) for folder, (names, _) in tree.items()})
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
            return
        if flags & os.O_DIRECTORY:
            return
        if path in self._written or path.startswith(self._ignore):
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
        source = _look(path)
        if source is not None:
            age = time.time_ns() - max(source.ctime_ns, source.mtime_ns)
            if 0 <= age < _TICK and path not in self._appeared:
                # Read it only when the clock has moved on, or a write after this would leave no trace.
                time.sleep((_TICK - age) / 1e9)
                source = _look(path)
        elif not os.path.lexists(path) and _asked_by_program():
            self._absent.add(path)
        self._seen.setdefault(path, source)

    def _looked_into(self, raw: str) -> None:
        path = absolute(raw)
        if not path.startswith(self._ignore) and not is_library_file(os.path.join(path, 'x')):
            self._listed.add(path)

    # ---- at the end

    def _finish(self) -> None:
        for path, before in list(self._seen.items()):
            if before is None:
                continue
            now = _look(path)
            if now is None and path in self._appeared:
                self._seen[path] = None
            elif now != before:
                self.changed = self.changed or f'{path}: {"modified" if now else "removed"} during the load'
        for folder, before_names in self._folders.items():
            try:
                names = _names(os.listdir(folder))
            except OSError:
                self.changed = self.changed or f'{folder}: removed during the load'
                continue
            ours = {n for n in set(names) ^ set(before_names) if self._is_ours(os.path.join(folder, n))}
            if set(names) - ours != set(before_names) - ours:
                self.changed = self.changed or f'{folder}: files came or went during the load'
            self._listings.append(Listing(folder, _hash(names)))
        for folder in sorted({os.path.dirname(p) for p in self._seen if p.startswith(tuple(self._large))}):
            with contextlib.suppress(OSError):
                self._listings.append(Listing(folder, _digest(folder)))
        for folder in sorted(self._listed - self._folders.keys()):
            with contextlib.suppress(OSError):
                self._listings.append(Listing(folder, _digest(folder)))
        self._absent = {p for p in self._absent if not os.path.lexists(p) and not self._is_ours(p)}
        if self._relative:
            self._listings.append(Listing(WORKING_DIRECTORY, _digest(WORKING_DIRECTORY)))

    def _is_ours(self, path: str) -> bool:
        return path in self._written or path in self._appeared


def _look(path: str) -> Source | None:
    try:
        s = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stats.S_ISREG(s.st_mode):
        return None
    return Source(path, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino)


def _tree(root: str) -> dict[str, tuple[list[str], list[str]]] | None:
    """All names, and the files, of each folder below root; None where there is too much of it."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    count = 0
    for folder, names, files in _walk(root, 0):
        count += len(files)
        if count > MAX_FILES or len(found) > MAX_FILES:
            return None
        found[folder] = (names, files)
    return found


def _walk(folder: str, depth: int) -> Iterator[tuple[str, list[str], list[str]]]:
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError:
        return
    below = [e for e in found if e.is_dir()]
    yield folder, [e.name for e in found], [e.name for e in found if e not in below]
    if depth < MAX_DEPTH:
        for entry in below:
            # Caches and version control, none of which a loader reads.
            if not entry.name.startswith('.') and entry.name != '__pycache__':
                yield from _walk(entry.path, depth + 1)
