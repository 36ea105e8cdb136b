"""Entries as a reader holds them: open descriptors, and the checks of what they lead to."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from overmind.errors import CorruptEntry
from overmind.manifest import Manifest

if TYPE_CHECKING:
    from overmind.store import Store

MAX_BLOB = 1 << 30  # as the helper has it

# What opening or reading something that is not the kind of file that it should be ends in.
WRONG_KIND = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)

# How arenas are reached: the kernel maps the daemon's memory through its files; the daemon passes its memory over a
# socket; they are read into private memory, since a page-cache mapping would not survive the daemon; or there is no
# daemon.
Way = Literal['passthrough', 'fd', 'read', 'directory']


def close(fd: int) -> None:
    """Close a file of the cache. A dead daemon answers with an error, and the descriptor is gone all the same."""
    with contextlib.suppress(OSError):
        os.close(fd)


def close_all(fds: list[int]) -> None:
    while fds:
        close(fds.pop())


class Descriptors:
    """Closes those that it has when nothing refers to it any more, whatever interrupts who uses them."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __del__(self) -> None:
        close_all(self.numbers)


@dataclass(slots=True)
class OpenEntry:
    """A published or staged entry, held open; the descriptors are the lease until the mappings have theirs."""

    manifest: Manifest
    structure: bytes
    arenas: list[int]
    owner: int
    access: Way = 'directory'
    leases: list[int] = field(default_factory=list)  # where the arenas' descriptors are none: files, or the folder
    folder: int = -1  # of a plain directory's entry
    store: Store | None = None  # which is there when the arenas are read, and may hang then
    # What closes the descriptors when nothing refers to them any more; without any the arenas are closed one by one.
    opened: object = None
    memory: Descriptors | None = None

    def files(self) -> list[str]:
        """All that it consists of, in its folder."""
        return ['manifest', 'structure.pkl', *(os.path.join('tensors', a.name) for a in self.manifest.arenas)]

    def close(self) -> None:
        if self.opened is None:
            close_all(self.arenas)
        self.arenas, self.leases, self.folder, self.opened, self.memory = [], [], -1, None, None


@dataclass(slots=True)
class Opened:
    """What the helper's open_entry has found in a folder."""

    root: tuple[int, int]
    error: int
    name: str
    files: object  # closes the descriptors when it is gone
    folder: int
    arenas: tuple[tuple[int, int, int, int], ...]  # descriptor, owner, size, inode
    manifest: bytes
    owner: int
    structure: bytes
    author: int

    def close(self) -> None:
        """For an entry that was made of it, they stay open."""
        self.files, self.arenas, self.folder = None, (), -1

    def is_missing(self) -> bool:
        return self.error == errno.ENOENT and self.name in ('', 'manifest')

    def check(self, base: str) -> None:
        """Raises CorruptEntry for an entry that is not whole, OSError where the store failed."""
        path = os.path.join(base, self.name)
        if not self.error:
            return
        if self.error == errno.ENOTDIR and not self.name:
            raise CorruptEntry(f'{base} is not a folder')
        if self.error in WRONG_KIND:
            raise CorruptEntry(f'{path} is not a file')
        if self.error == errno.EFBIG:
            raise CorruptEntry(f'{path} has more than 1 GiB')
        if self.error == errno.ENOENT and self.name:
            raise CorruptEntry(f'{path} is missing')
        raise OSError(self.error, os.strerror(self.error), path if self.name else base)

    def entry(self, manifest: Manifest, access: Way, store: Store) -> OpenEntry:
        """The entry, if it is what its manifest says. Raises CorruptEntry."""
        if len(self.arenas) != len(manifest.arenas):
            raise CorruptEntry(f'{manifest.id}: the names of its arenas cannot be read')
        for a, (_, uid, nbytes, _) in zip(manifest.arenas, self.arenas, strict=True):
            if uid not in (self.owner, 0):
                raise CorruptEntry(f'the manifest belongs to uid {self.owner}, {a.name} to uid {uid}')
            check_size(a.name, nbytes, a.nbytes)
        if self.author != self.owner:
            raise CorruptEntry(f'structure.pkl belongs to uid {self.author}, the manifest to uid {self.owner}')
        check_size('structure.pkl', len(self.structure), manifest.structure_nbytes)
        arenas = [fd for fd, *_ in self.arenas]
        if store.is_mount:
            return OpenEntry(manifest, self.structure, arenas, self.owner, access, store=store, opened=self.files)
        leases = [self.folder] * len(arenas)
        return OpenEntry(
            manifest, self.structure, arenas, self.owner, access, leases, self.folder, store, opened=self.files
        )


def close_entry(entry: OpenEntry | None) -> None:
    if entry is not None:
        entry.close()


def check_size(name: str, nbytes: int, said: int) -> None:
    if nbytes != said:
        raise CorruptEntry(f'{name} has {nbytes} bytes, the manifest says {said}')


def is_still(folder: str, at: int) -> bool:
    """Whether the path leads to the folder that is open."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(at))
    except OSError:
        return False


def read_file(path: str) -> tuple[bytes, int]:
    """Content and owner of a small file, in as few calls as that takes."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        st = os.fstat(fd)
        if st.st_size > MAX_BLOB:
            raise CorruptEntry(f'{path} has {st.st_size} bytes, more than {MAX_BLOB}')
        parts, left = [], st.st_size
        while left > 0:
            part = os.read(fd, left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b''.join(parts), st.st_uid
    finally:
        close(fd)
