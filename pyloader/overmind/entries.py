"""Entries as a reader holds them: open descriptors, and the checks of what they lead to."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from overmind.errors import CorruptEntry
from overmind.manifest import Manifest

if TYPE_CHECKING:
    from overmind.store import Store

MAX_BLOB = 1 << 30

# How arenas are reached: the kernel maps the daemon's memory through its files; the daemon passes its memory over a
# socket; they are read into private memory, since a page-cache mapping would not survive the daemon; or there is no
# daemon.
Way = Literal['passthrough', 'fd', 'read', 'directory']


def close(fd: int) -> None:
    """Close a file of the cache. A dead daemon answers with an error, and the descriptor is gone all the same."""
    with contextlib.suppress(OSError):
        os.close(fd)


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

    def files(self) -> list[str]:
        """All that it consists of, in its folder."""
        return ['manifest', 'structure.pkl', *(os.path.join('tensors', a.name) for a in self.manifest.arenas)]

    def close(self) -> None:
        for fds in (self.arenas, self.leases):
            while fds:
                close(fds.pop())
        if self.folder >= 0:
            close(self.folder)
            self.folder = -1


def close_entry(entry: OpenEntry | None) -> None:
    if entry is not None:
        entry.close()


def check_size(name: str, nbytes: int, said: int) -> None:
    if nbytes != said:
        raise CorruptEntry(f'{name} has {nbytes} bytes, the manifest says {said}')


def check_file(name: str, info: os.stat_result, said: int, owner: int) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise CorruptEntry(f'{name} is not a file')
    if info.st_uid not in (owner, 0):
        raise CorruptEntry(f'the manifest belongs to uid {owner}, {name} to uid {info.st_uid}')
    check_size(name, info.st_size, said)


def is_still(folder: str, at: int) -> bool:
    """Whether the path leads to the folder that is open."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(at))
    except OSError:
        return False


def read_file(path: str, at: int | None = None) -> tuple[bytes, int]:
    """Content and owner of a small file, in as few calls as that takes; at is the folder that path starts from."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
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
