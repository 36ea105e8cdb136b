"""One line on standard error that says what takes so long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Announce a step, and how long it has been going on: in place on a terminal, every ten seconds elsewhere."""
    terminal = sys.stderr.isatty()
    start, ended = time.perf_counter(), threading.Event()

    def tick() -> None:
        while not ended.wait(0.5 if terminal else 10):
            end = '\r' if terminal else '\n'
            print(f'  {what} ... {time.perf_counter() - start:.0f} s', end=end, file=sys.stderr, flush=True)

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    how = 'failed after'
    try:
        yield
        how = 'done in'
    finally:
        ended.set()
        ticker.join()
        print(f'  {what}: {how} {time.perf_counter() - start:.1f} s   ', file=sys.stderr, flush=True)
