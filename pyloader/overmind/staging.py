"""A fill under way, as files in ``staging/<id>`` (docs/protocol.md)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

from overmind import directory
from overmind.entries import OpenEntry, close
from overmind.errors import StoreError
from overmind.locks import keep_from_children, let_children_have
from overmind.store import Store


@contextlib.contextmanager
def stage(store: Store, id: str) -> Iterator[Staging]:
    """A new staging folder for an id whose lock the caller holds; dropped unless it was committed."""
    staging = Staging(store, id)
    store.guard(staging.make)
    try:
        yield staging
    finally:
        if not staging.committed:
            with contextlib.suppress(OSError, StoreError):
                store.guard(staging.drop, 60)


@dataclass(slots=True)
class Staging:
    """A fill under way. Every method raises OSError; Store.explain says what it means."""

    store: Store
    id: str
    committed: bool = field(default=False, init=False)
    files: list[str] = field(default_factory=list, init=False)  # of the entry, when it was opened again

    @property
    def path(self) -> str:
        return os.path.join(self.store.root, 'staging', self.name)

    @property
    def name(self) -> str:
        return self.store.name(self.id)

    def make(self) -> None:
        if self.store.is_mount:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.path)
        else:
            directory.remove(self.path)
            directory.remove(self._aside)
        _mkdir(self.path)
        _mkdir(os.path.join(self.path, 'tensors'))

    def reserve(self, nbytes: int) -> None:
        """Room for all of the fill, before any of it is written: a part of it must not drive other entries out."""
        if not self.store.is_mount:
            return
        try:
            self.store.patiently(lambda: os.setxattr(self.path, 'user.overmind.reserve', str(nbytes).encode()))
        except OSError as e:
            if e.errno == errno.ENOSPC:
                raise StoreError(f'{self.path}: {self._no_room(nbytes)}') from e
            if e.errno not in (errno.EPERM, errno.ENOTSUP):  # a daemon from before there were reservations
                raise

    def _no_room(self, nbytes: int) -> str:
        disk = self.store.guard(lambda: os.statvfs(self.store.root))
        return (
            f'no room in the cache for {_mib(nbytes)}: its budget is {_mib(disk.f_blocks * disk.f_frsize)}, '
            f'{_mib(disk.f_bavail * disk.f_frsize)} of it are unused, and what is in use or pinned stays; '
            'see overmind-fs status, and --max-bytes of overmind-fs mount'
        )

    @contextlib.contextmanager
    def arena(self, name: str, nbytes: int) -> Iterator[tuple[int, bool]]:
        """A new arena of its final size: a descriptor for writing, closed at the end, and whether it may be mapped."""
        path = os.path.join(self.path, 'tensors', name)
        with contextlib.ExitStack() as opened:
            fd = self.store.patiently(lambda: self._create(path, nbytes), late=close)
            opened.callback(close, fd)
            _keep(fd, opened)
            mapped = self.store.way in ('passthrough', 'directory')
            if self.store.way == 'fd':
                try:
                    fd = self.store.memory('staging', self.name, name, os.fstat(fd).st_ino)
                except (OSError, StoreError) as e:
                    self.store.socket_failed(e)
                else:
                    opened.callback(close, fd)
                    _keep(fd, opened)
                    mapped = True
            yield fd, mapped

    def link(self, file: int, name: str) -> None:
        """A new arena that is an open file of the cache: exactly that one, whatever its path leads to by now."""

        def work(own: int) -> None:
            folder = os.open(os.path.join(self.path, 'tensors'), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.link(f'/proc/self/fd/{own}', name, dst_dir_fd=folder, follow_symlinks=True)
            finally:
                close(folder)

        self.store.patiently_with(file, work)

    def _create(self, path: str, nbytes: int) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, nbytes)
            if not self.store.is_mount:
                # Blocks now: a write through a mapping to a full disk would end the process with SIGBUS.
                os.posix_fallocate(fd, 0, nbytes)
        except BaseException:
            close(fd)
            raise
        return fd

    def write(self, name: str, data: bytes) -> None:
        def work() -> None:
            fd = os.open(os.path.join(self.path, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, 'wb') as f:
                f.write(data)

        self.store.patiently(work)

    def reopen(self) -> OpenEntry:
        """The staged entry as a reader will find it."""
        if not self.store.is_mount:
            for folder, _, names in os.walk(self.path):
                for n in names:
                    os.chmod(os.path.join(folder, n), 0o444)
        entry = self.store.staged(self.name)
        self.files = entry.files()
        return entry

    def commit(self) -> None:
        """Publish whole or not at all; an older entry of the id is replaced."""
        self.store.patiently(self._rename)
        self.committed = True
        if not self.store.is_mount:
            with contextlib.suppress(OSError):
                directory.remove(self._aside)

    def _rename(self) -> None:
        if self.store.is_mount:
            os.rename(self.path, os.path.join(self.store.root, 'pipelines', self.name))
        else:
            directory.finish(self.path, self.files)
            directory.publish(self.store.root, self.id)

    @property
    def _aside(self) -> str:
        return os.path.join(self.store.root, directory.aside_of(self.id))

    def drop(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _keep(fd: int, opened: contextlib.ExitStack) -> None:
    """A child of the program that has an arena open for writing would hold up the commit."""
    keep_from_children(fd)
    opened.callback(let_children_have, fd)


def _mkdir(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except OSError as e:
        if e.errno != errno.ESTALE:
            raise
        # Another daemon has just taken the place. The kernel repeats every other call by itself, and mkdir not always.
        os.mkdir(path, 0o700)


def _mib(nbytes: int) -> str:
    return f'{nbytes / 2**20:,.1f} MiB'
