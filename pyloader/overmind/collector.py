"""Python's garbage collector, out of the way where thousands of objects are made that all stay alive."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

# So often in a process; after that, the collector has to get to know of what is made and dropped again and again.
_AT_MOST = 8
_left = _AT_MOST


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Thousands of new objects, all of them alive, have the garbage collector run for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def made_to_stay() -> None:
    """The collector takes all objects that there are now for old ones, which it looks at when it looks at everything.

    It would otherwise look at thousands of new ones as soon as it runs again, and at all that an import has left behind
    when that has happened a few times: a tenth part of a hit.
    """
    global _left
    if _left <= 0:
        return
    _left -= 1
    if gc.get_freeze_count():  # the program's, or that of ``overmind run``; counting them again takes time
        _left = 0
        return
    gc.freeze()
    gc.unfreeze()


def leave_young() -> None:
    """For a process that has frozen its objects: made_to_stay does nothing from now on."""
    global _left
    _left = 0
