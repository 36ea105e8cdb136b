"""Locks of ids, which end with the process that holds them."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass

from overmind.entries import close

# Held or waited for. A forked child must not keep its parent's locks alive.
_held: set[int] = set()


@dataclass(slots=True)
class Lock:
    """``locks/<id>`` held exclusively."""

    fd: int

    def release(self) -> None:
        """Once; and not at all in a forked child, whose number may be that of another file by now."""
        if self.fd in _held:
            _held.discard(self.fd)
            # A child that no hook of Python saw, such as one of a C library, shares the open file.
            with contextlib.suppress(OSError):
                fcntl.flock(self.fd, fcntl.LOCK_UN)
            close(self.fd)
        self.fd = -1


def hold(fd: int) -> Lock:
    """The lock behind an open file, to be released whether or not it was got."""
    _held.add(fd)
    return Lock(fd)


def adopt(fd: int) -> None:
    """An inherited lock stays held for as long as this process lives, and is not passed on."""
    os.set_inheritable(fd, False)
    _held.add(fd)


def _drop_locks_in_child() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_drop_locks_in_child)
