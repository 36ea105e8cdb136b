"""Locks of the cache, which end with their process and are no forked child's."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass

from overmind.errors import StoreError


@dataclass(slots=True)
class Lock:
    """``locks/<id>`` held exclusively."""

    fd: int

    def take(self, root: str) -> None:
        """Raises BlockingIOError, or StoreError where nobody can have it."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as e:  # such as NFS without its lock daemon
            raise StoreError(f'{root}: no file can be locked there ({e.strerror}); use a local folder') from e

    def release(self) -> None:
        """Once; and not at all in a forked child, whose number may be that of another file by now."""
        if self.fd in held:
            held.discard(self.fd)
            # A child that no hook of Python saw, such as one of a C library, shares the open file.
            with contextlib.suppress(OSError):
                fcntl.flock(self.fd, fcntl.LOCK_UN)
            with contextlib.suppress(OSError):
                os.close(self.fd)
        self.fd = -1


# Held or waited for, and other files that a forked child must not keep alive, such as an arena that is being written.
held: set[int] = set()


def keep_from_children(fd: int) -> None:
    """Closed at once in every child that Python forks, until let_children_have."""
    held.add(fd)


def let_children_have(fd: int) -> None:
    """Before fd is closed: its number may be another file's soon."""
    held.discard(fd)


def hold(fd: int) -> Lock:
    """The lock behind an open file, to be released whether or not it was got."""
    held.add(fd)
    return Lock(fd)


def adopt(fd: int) -> None:
    """An inherited lock stays held for as long as this process lives, and is not passed on."""
    os.set_inheritable(fd, False)
    held.add(fd)


def _drop_locks_in_child() -> None:
    for fd in held:
        with contextlib.suppress(OSError):
            os.close(fd)
    held.clear()


os.register_at_fork(after_in_child=_drop_locks_in_child)
