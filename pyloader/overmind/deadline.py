"""File operations that must not hang the program when what serves them does."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import TypeVar

from overmind.errors import Hangs, StoreError

T = TypeVar('T')


def guarded(
    what: str,
    seconds: float,
    work: Callable[[], T],
    late: Callable[[T], None] | None = None,
    check: Callable[[], object] | None = None,
) -> T:
    """work(), or StoreError when it takes longer than that: a thread in an uninterruptible call cannot be ended.

    A result that comes when nobody waits for it any more goes to late, which closes it. With check, work may take as
    long as it wants, and check is called each time that so many seconds have passed, to raise if there is no hope.
    """
    result: list[T] = []
    error: list[BaseException] = []
    gate, over = threading.Lock(), threading.Lock()
    abandoned = False

    def run() -> None:
        try:
            value = work()
            with gate:
                if not abandoned:
                    result.append(value)
                    return
            if late is not None:
                late(value)
        except BaseException as e:
            error.append(e)
        finally:
            over.release()

    def abandon() -> None:
        nonlocal abandoned
        with gate:
            abandoned = True

    over.acquire()
    try:
        # Not a Thread: with its events and its way in and out of a table it costs five times as much.
        _thread.start_new_thread(run, ())
    except RuntimeError as e:
        raise StoreError(f'{what} is not touched without a thread to do it: {e}') from e
    try:
        done = over.acquire(timeout=seconds)
        while check is not None and not done:
            check()
            done = over.acquire(timeout=seconds)
    except BaseException:
        abandon()
        if result and late is not None:
            late(result[0])
        raise
    abandon()
    if error:
        raise error.pop()
    if not result:
        raise Hangs(hanging(what, seconds))
    return result[0]


def hanging(what: str, seconds: float) -> str:
    """What to say of something that was touched in vain for so long."""
    return f'{what} did not answer within {seconds:g} s; the daemon hangs'
