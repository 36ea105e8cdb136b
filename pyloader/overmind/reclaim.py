"""Removing from a plain directory what is old, what does not fit, and what killed processes left (``overmind gc``).

Every step holds the lock of the id that it is about, as a filler does, and works with descriptors of the cache's own
folders, so that no link leads it elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from overmind import directory

_ASIDE = '.old-'
_UNFINISHED_SECONDS = 60.0  # in which a process gives the tag its name


@dataclass(frozen=True, slots=True)
class Removed:
    """nbytes is what it freed: what other entries share stays."""

    kind: Literal['entry', 'fill', 'lock']
    name: str
    nbytes: int
    idle_seconds: float


@dataclass(slots=True)
class Report:
    """What was removed, or would be; kept is what is left of entries, busy are those that should have gone, unreadable
    those that are neither counted nor removed."""

    removed: list[Removed] = field(default_factory=list)
    kept: int = 0
    kept_bytes: int = 0
    busy: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Entry:
    id: str
    used: float
    files: dict[tuple[int, int], int]  # device and inode -> bytes on the disk


class Cache:
    """The folders of a plain directory that is a cache. Raises OSError."""

    def __init__(self, root: str, dry_run: bool) -> None:
        self._dry_run = dry_run
        self._opened = contextlib.ExitStack()
        with contextlib.ExitStack() as opened:
            self._root = _folder(root, None, opened, os.O_DIRECTORY)
            for name in directory.FOLDERS:  # whoever made the cache may have been killed before these
                with contextlib.suppress(OSError):
                    os.mkdir(name, 0o700, dir_fd=self._root)
            self._pipelines, self._staging, self._locks = [
                _folder(name, self._root, opened) for name in directory.FOLDERS
            ]
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def collect(self, max_bytes: int | None, max_age: float | None) -> Report:
        """Dead fills and locks; entries unused for more than max_age seconds; then those unused for longest, until all
        together take at most max_bytes."""
        report = Report()
        self._fills(report)
        entries = self._entries(report)
        owners = Counter(file for e in entries for file in e.files)
        total = sum({file: n for e in entries for file, n in e.files.items()}.values())
        now = time.time()
        for e in list(entries):
            old = max_age is not None and now - e.used > max_age
            if not old and (max_bytes is None or total <= max_bytes):
                continue
            freed = sum(n for file, n in e.files.items() if owners[file] == 1)
            if not self._evict(e):
                report.busy.append(e.id)
                continue
            owners.subtract(e.files.keys())  # a mapping would subtract its values
            total -= freed
            entries.remove(e)
            report.removed.append(Removed('entry', e.id, freed, now - e.used))
        self._free_locks(report)
        self._unfinished_tags()
        report.kept, report.kept_bytes = len(entries), total
        return report

    def _entries(self, report: Report) -> list[_Entry]:
        """The one unused for longest first."""
        found = [self._entry(id, report) for id in os.listdir(self._pipelines)]
        return sorted([e for e in found if e is not None], key=lambda e: e.used)

    def _entry(self, id: str, report: Report) -> _Entry | None:
        try:
            info = os.lstat(id, dir_fd=self._pipelines)
            return _Entry(id, info.st_mtime, _files(id, self._pipelines)) if stat.S_ISDIR(info.st_mode) else None
        except FileNotFoundError:
            return None
        except OSError:  # as where root has filled the cache of a user
            report.unreadable.append(id)
            return None

    def _fills(self, report: Report) -> None:
        """Whoever fills holds the lock, and so does who moves an entry aside."""
        for name in os.listdir(self._staging):
            id = name.removeprefix(_ASIDE)
            with self._locked(id) as free, contextlib.suppress(FileNotFoundError):
                if not free:
                    continue
                idle = time.time() - os.lstat(name, dir_fd=self._staging).st_mtime
                nbytes = sum(_files(name, self._staging).values())
                if not self._dry_run:
                    directory.remove(name, self._staging)
                report.removed.append(Removed('fill', id, nbytes, idle))

    def _evict(self, entry: _Entry) -> bool:
        """False where a process has it mapped, has just used it, or fills that id anew."""
        with self._locked(entry.id) as free, contextlib.ExitStack() as opened:
            if not free:
                return False
            try:
                fd = _folder(entry.id, self._pipelines, opened)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except FileNotFoundError:
                return True
            if os.fstat(fd).st_mtime != entry.used:
                return False
            if not self._dry_run:
                aside = f'{_ASIDE}{entry.id}'
                directory.remove(aside, self._staging)
                directory.set_aside(entry.id, aside, self._pipelines, self._staging)
                directory.remove(aside, self._staging)
            return True

    def _free_locks(self, report: Report) -> None:
        """A waiter that gets a lock looks whether it is still the one in the folder."""
        for name in os.listdir(self._locks):
            with contextlib.suppress(OSError):
                info = os.lstat(name, dir_fd=self._locks)
                with self._locked(name) as free:
                    if free and not self._dry_run:
                        os.unlink(name, dir_fd=self._locks)
                if free and not self._dry_run:
                    report.removed.append(Removed('lock', name, 0, time.time() - info.st_mtime))

    def _unfinished_tags(self) -> None:
        for name in os.listdir(self._root):
            if name.startswith(directory.UNFINISHED_TAG) and not self._dry_run:
                with contextlib.suppress(OSError):
                    if time.time() - os.lstat(name, dir_fd=self._root).st_mtime > _UNFINISHED_SECONDS:
                        os.unlink(name, dir_fd=self._root)

    @contextlib.contextmanager
    def _locked(self, id: str) -> Iterator[bool]:
        """Whether the lock of an id was free; then it is held."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if self._dry_run else os.O_CREAT)
        try:
            fd = os.open(id, flags, 0o600, dir_fd=self._locks)
        except FileNotFoundError:
            yield True
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield self._is_named(fd, id)
        finally:
            os.close(fd)

    def _is_named(self, fd: int, id: str) -> bool:
        """Another gc may have removed it since it was opened."""
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(id, dir_fd=self._locks))
        except FileNotFoundError:
            return False


def _folder(
    name: str, at: int | None, opened: contextlib.ExitStack, flags: int = os.O_DIRECTORY | os.O_NOFOLLOW
) -> int:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=at)
    opened.callback(os.close, fd)
    return fd


def _files(name: str, at: int) -> dict[tuple[int, int], int]:
    """The files in a folder, or none where it is not one."""
    found = {}
    for _, _, files, folder in os.fwalk(name, dir_fd=at):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                info = os.lstat(file, dir_fd=folder)
                found[info.st_dev, info.st_ino] = info.st_blocks * 512
    return found
