"""Whether this process is loading something right now. Without locks, so that a forked child finds none taken."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

_POLL_SECONDS = 0.02
_loading: dict[object, None] = {}
_waiting: dict[object, None] = {}  # loads that wait for others
_ended = 0.0


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Within this block this thread is at work on a load."""
    global _ended
    me = object()
    _loading[me] = None
    try:
        yield
    finally:
        _loading.pop(me, None)
        _ended = time.monotonic()


@contextlib.contextmanager
def only_waiting() -> Iterator[None]:
    """Within this block of a load it waits for others, who must not wait for it."""
    me = object()
    _waiting[me] = None
    try:
        yield
    finally:
        _waiting.pop(me, None)


def wait_for_quiet(quiet_seconds: float, at_most_seconds: float) -> None:
    """Return when nothing has been loaded for a moment; programs load the parts of a pipeline one after the other. Or
    when a load waits, which may be for the one that asks."""
    until = time.monotonic() + at_most_seconds
    while time.monotonic() < until and not _waiting and (_loading or time.monotonic() - _ended < quiet_seconds):
        time.sleep(_POLL_SECONDS)


os.register_at_fork(after_in_child=_loading.clear)
os.register_at_fork(after_in_child=_waiting.clear)
