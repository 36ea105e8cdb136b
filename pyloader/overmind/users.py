"""Users as the daemon sees them."""

from __future__ import annotations

from functools import lru_cache


def outer(uid: int) -> int:
    """The number that a uid of this process has outside its user namespace."""
    with open('/proc/self/uid_map') as f:
        for inside, outside, count in (map(int, line.split()) for line in f):
            if inside <= uid < inside + count:
                return outside + uid - inside
    return uid


def unmapped(uid: int) -> bool:
    """Whether a uid may stand for any user that has no number in the user namespace of this process."""
    return uid == overflow() and not _initial_namespace()


def within() -> str:
    """What else it may be that another user is in the way: a number is that of the namespace around this one only."""
    return '' if _initial_namespace() else ', or its user namespace is within another one, where numbers are not known'


def _initial_namespace() -> bool:
    with open('/proc/self/uid_map') as f:
        return f.read().split() == ['0', '0', '4294967295']


@lru_cache(maxsize=1)
def overflow() -> int:
    """The number that stands for all of those."""
    with open('/proc/sys/kernel/overflowuid') as f:
        return int(f.read())
