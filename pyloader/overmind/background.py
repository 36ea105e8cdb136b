"""Entries that are written while the program goes on: a first load returns when its loader does.

A copier has the memory as it was then; a thread of this process does the rest, under the lock of the id. The program
does not end before: the thread is none of those that an exit leaves behind. One entry is written at a time, and none
while the program goes on loading, which would only take longer.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from overmind.activity import only_waiting, wait_for_quiet
from overmind.copier import Copier
from overmind.errors import Bypass, OvermindError, StoreError
from overmind.logs import logger
from overmind.progress import Progress
from overmind.publish import Content, link_and_reserve, write_rest
from overmind.staging import Staging, stage
from overmind.statistics import Load
from overmind.store import Store

_QUIET_SECONDS, _QUIET_AT_MOST_SECONDS = 0.1, 10.0
_INTERRUPTED_SECONDS = 10.0
_pending: dict[threading.Event, Publication] = {}  # with what is set when one is done
_turn = threading.Lock()
_failures: list[OvermindError] = []  # with OVERMIND_STRICT=1, of which nobody has heard yet


@dataclass(slots=True)
class Publication:
    """One entry to be written. held has the locks; it and the copier are closed at the end."""

    store: Store
    id: str
    content: Content
    copier: Copier
    load: Load
    held: contextlib.ExitStack
    changed: Callable[[], str | None]  # why what the copier saw may not be what was loaded
    failed: Callable[[Exception], None]  # not called with the lock held
    _interrupted: bool = field(default=False, init=False)

    def start(self) -> None:
        """Raises RuntimeError where no thread is to be had; held is then still the caller's."""
        done = threading.Event()
        _pending[done] = self
        try:
            threading.Thread(target=self._run, args=(done,), name='overmind-fill', daemon=False).start()
        except Exception:  # not of Ctrl-C, which comes when the thread runs
            del _pending[done]
            done.set()
            raise

    def _run(self, done: threading.Event) -> None:
        try:
            wait_for_quiet(_QUIET_SECONDS, _QUIET_AT_MOST_SECONDS)
            with _turn:
                error = self._write()
            if error is not None:
                self.failed(error)
        finally:
            _pending.pop(done, None)
            done.set()

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.content.plans)

    def interrupt(self) -> None:
        """From another thread: no more copies, and what is staged is dropped."""
        self._interrupted = True
        self.copier.kill()

    def _line(self) -> Progress:
        """On the terminal, once the program itself is at its end and waits for this."""
        text = f'the program is done; writing {self.id} into the cache'
        return Progress(text, background=True, when=lambda: not threading.main_thread().is_alive())

    def _write(self) -> Exception | None:
        try:
            with self.held, contextlib.closing(self.copier), self._line():
                try:
                    with stage(self.store, self.id) as staging:
                        self._fill(staging)
                except OSError as e:
                    raise self.store.explain(e) from e
        except Exception as e:
            return StoreError('the program was interrupted while it was written') if self._interrupted else e
        logger.info('%s: written to the cache, %s', self.load.loader, self.id)
        return None

    def _fill(self, staging: Staging) -> None:
        start = time.perf_counter()
        for plan in link_and_reserve(staging, self.content, self.copier.agreement, self.load):
            with staging.arena(plan.name, plan.nbytes) as (fd, mapped):
                work = functools.partial(self.copier.copy, plan, mapped=mapped)
                self.store.patiently_with(fd, work)
        copied = time.perf_counter()
        self.load.seconds['copy'] = copied - start
        why = self.changed()
        if why is not None:
            raise Bypass(f'what it was loaded from changed before it was copied: {why}')
        write_rest(staging, self.content)
        entry = staging.reopen()
        self.load.access = entry.access
        entry.close()
        staging.commit()
        self.load.seconds['commit'] = time.perf_counter() - copied


def finish(timeout: float | None = None) -> bool:
    """Wait at most so many seconds until nothing is being written any more; whether that is so."""
    until = None if timeout is None else time.monotonic() + timeout
    for done in list(_pending):
        done.wait(None if until is None else max(0.0, until - time.monotonic()))
    return not _pending


def wait_for_room(nbytes: int) -> None:
    """Until what is still to be written leaves room for so many bytes more: the program may have freed it long ago."""
    with only_waiting():
        while waiting := dict(_pending):
            if 2 * (sum(p.nbytes for p in waiting.values()) + nbytes) <= available_memory():
                break
            next(iter(waiting)).wait()


def available_memory() -> int:
    """Bytes that the machine could still give to programs; 0 where it does not say."""
    with contextlib.suppress(OSError), open('/proc/meminfo', 'rb') as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(b'MemAvailable:'))
    return 0


def remember(why: OvermindError) -> None:
    """A failure that is to be raised, and came when nobody could catch it."""
    _failures.append(why)


def raise_remembered() -> None:
    """Raise the first failure that nobody has heard of, if there is one."""
    if _failures:
        raise _failures.pop(0)


def _interrupt() -> None:
    """At the end of a program that has not waited: it was interrupted then, and on a plain directory nobody else drops
    what is staged."""
    if threading.main_thread().is_alive():
        return
    for publication in list(_pending.values()):
        publication.interrupt()
    with contextlib.suppress(KeyboardInterrupt):
        finish(_INTERRUPTED_SECONDS)


def _forget_in_child() -> None:
    global _turn
    _turn = threading.Lock()
    _pending.clear()
    _failures.clear()


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_interrupt)
