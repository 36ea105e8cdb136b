"""A line on the terminal for waits and fills that take longer than a moment."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from overmind.logs import logger

DELAY_SECONDS = 2.0
_REFRESH_SECONDS = 0.2


class Progress:
    """Shows nothing until two seconds have passed, and never anything where stderr is no terminal. Never raises.

    Call ``tick`` from a loop that polls. Where nothing polls, ``background=True`` keeps the line alive from a thread
    between ``__enter__`` and ``__exit__``. With ``when`` the time counts from when that is true.
    """

    def __init__(
        self,
        description: str,
        total: int | None = None,
        *,
        background: bool = False,
        when: Callable[[], bool] | None = None,
    ) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._refreshed = 0.0
        self._bar: Any = None
        self._closed = not _on_terminal()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._background = background and not self._closed
        self._when = when

    def __enter__(self) -> Progress:
        if self._background:
            try:
                threading.Thread(target=self._run, name='overmind-progress', daemon=True).start()
            except RuntimeError as e:
                logger.debug('no progress thread: %s', e)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def tick(self, done: int | None = None, total: int | None = None) -> None:
        """Say how far it is, in bytes if at all; cheap enough to be called in every round of a loop."""
        if self._closed:
            return
        now = time.monotonic()
        if self._when is not None and not self._when():
            self._started = now
        if done is not None:
            self._done = done
        if total is not None:
            self._total = total
        if now - self._started < DELAY_SECONDS or now - self._refreshed < _REFRESH_SECONDS:
            return
        self._refreshed = now
        with self._lock:
            if not self._closed:
                self._draw()

    def close(self) -> None:
        """Take the line away."""
        self._stop.set()
        with self._lock:
            self._closed = True
            bar, self._bar = self._bar, None
        if bar is not None:
            try:
                bar.close()
            except Exception as e:
                logger.debug('closing the progress line failed: %s', e)

    def _draw(self) -> None:
        try:
            if self._bar is None:
                from tqdm import tqdm

                form = None if self._total else '{desc} [{elapsed}]'
                self._bar = tqdm(
                    desc=self._description,
                    total=self._total,
                    unit='B',
                    unit_scale=True,
                    leave=False,
                    file=sys.stderr,
                    bar_format=form,
                )
                self._bar.start_t = time.time() - (time.monotonic() - self._started)
            self._bar.n = self._done
            self._bar.refresh()
        except Exception as e:
            self._closed = True
            logger.debug('no progress line: %s', e)

    def _run(self) -> None:
        while not self._stop.wait(_REFRESH_SECONDS):
            self.tick()


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
