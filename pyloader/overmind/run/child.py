"""Makes a forked child the process that the caller would have had."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import os
import resource
import signal
import socket
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

from overmind.run import blas, learnt, messages, stdio, title
from overmind.run.before import changed
from overmind.run.curtain import Curtain

if TYPE_CHECKING:
    from overmind.run.messages import Request
    from overmind.run.parent import Parent

_PR_SET_PDEATHSIG = 1


class CannotServe(Exception):
    """The child cannot become what the caller is; it says so and ends."""


class Setup:
    """What there is to do in the child, from its fork to the start of the program."""

    def __init__(
        self,
        request: Request,
        fds: list[int],
        connection: socket.socket,
        parent: Parent,
        dispositions: dict[int, object],
        go: int,
    ) -> None:
        self._request = request
        self._fds = fds
        self._connection = connection
        self._parent = parent
        self._dispositions = dispositions
        self._go = go  # the keeper writes to it when this parent may serve
        self._keeper = os.getpid()

    def lead_terminal(self) -> None:
        """In the keeper, the leader of the session: take the passed terminal as the controlling one."""
        if self._request.terminal:
            fcntl.ioctl(self._fds[self._request.numbers.index(0)], termios.TIOCSCTTY, 0)

    def apply(self) -> None:
        """In the child. Ends it if anything cannot be done."""
        try:
            _die_with(self._keeper)
            self._take_descriptors()
            self._take_state()
            self._take_signals()
            self._refresh_libraries()
            self._take_words()
            if not os.read(self._go, 1):
                os._exit(1)
            os.close(self._go)
        except BaseException as e:
            messages.send(self._connection, 'refused', str(e) if isinstance(e, CannotServe) else repr(e))
            os._exit(1)
        _leave()
        messages.send(self._connection, 'started', os.getpid())
        self._connection.close()
        for fd, said in zip((1, 2), self._parent.said, strict=True):
            while said:
                said = said[os.write(fd, said) :]
        sys.meta_path.insert(0, Curtain(self._parent, self._request))
        atexit.register(_note_imports, self._parent.launch.place.path('learnt'), self._parent.known, os.getpid())

    def _take_descriptors(self) -> None:
        """The passed ones under their numbers, with nothing of ours beside them."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # until the caller's, who may be above it already
        above = max([2, *self._request.numbers]) + 1
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in self._fds]
        moved = socket.socket(fileno=fcntl.fcntl(self._connection.fileno(), fcntl.F_DUPFD_CLOEXEC, above))
        self._connection.close()
        self._connection = moved
        go = fcntl.fcntl(self._go, fcntl.F_DUPFD_CLOEXEC, above)
        os.close(self._go)
        self._go = go
        for fd in (0, 1, 2, *self._fds):
            os.close(fd)
        for fd, number in zip(high, self._request.numbers, strict=True):
            if number > 2 and _is_open(number):
                raise CannotServe(f'a library has opened the file descriptor {number}, which is passed on')
            os.dup2(fd, number)
            os.close(fd)

    def _take_state(self) -> None:
        request = self._request
        os.setpgid(0, 0)
        if request.terminal:
            os.tcsetpgrp(0, os.getpgrp())  # SIGTTOU is ignored here, as in the keeper
        os.umask(request.umask)
        try:
            for which, soft, hard in request.limits:
                if resource.getrlimit(which) != (soft, hard):
                    resource.setrlimit(which, (soft, hard))
        except (ValueError, OSError) as e:
            raise CannotServe('a resource limit of the warm parent is lower') from e
        try:
            if os.getpriority(os.PRIO_PROCESS, 0) != request.nice:
                os.setpriority(os.PRIO_PROCESS, 0, request.nice)
        except OSError as e:
            raise CannotServe('the nice value of the warm parent is higher') from e
        os.environ.clear()
        os.environ.update(request.environment)

    def _take_signals(self) -> None:
        ignored = frozenset(self._request.ignored)
        for number, handler in self._dispositions.items():
            with contextlib.suppress(OSError):  # glibc keeps two for itself
                if number in ignored:
                    signal.signal(number, signal.SIG_IGN)
                elif handler is not None:
                    signal.signal(number, handler)  # type: ignore[arg-type]
        signal.pthread_sigmask(signal.SIG_SETMASK, self._request.blocked)

    def _take_words(self) -> None:
        request = self._request
        first = '-m' if request.program[0] == '-m' else request.program[0]
        sys.argv[:] = [first, *request.arguments]
        words = [self._parent.launch.python, *request.options, *request.program, *request.arguments]
        sys.orig_argv[:] = words
        title.show(words, request.environment.items())
        stdio.reopen(self._parent.streams)

    def _refresh_libraries(self) -> None:
        """What a library does once in a process, and must not be the same in all children."""
        modules: Any = sys.modules
        if 'logging' in modules:
            start = modules['logging']._startTime
            modules['logging']._startTime = time.time_ns() if isinstance(start, int) else time.time()
        if 'numpy.random' in modules:
            modules['numpy.random'].seed()
        generator = getattr(modules.get('torch'), 'default_generator', None)
        if generator is not None:
            generator.seed()  # those of devices start alike in every process
        if 'multiprocessing.process' in modules:
            modules['multiprocessing.process'].current_process().authkey = os.urandom(32)
        environment = changed(self._request.environment, self._parent.changes)
        blas.set_threads(self._parent.openblas, environment, len(os.sched_getaffinity(0)))


def _die_with(keeper: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != keeper:
        os._exit(1)


def _leave() -> None:
    """Take what is only here for the parent's sake out of sys.modules."""
    names = [name for name in sys.modules if name.startswith('overmind.run')]
    for name in names if 'overmind.api' in sys.modules else [*names, 'overmind', 'overmind.private']:
        del sys.modules[name]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _note_imports(path: str, known: frozenset[str], program: int) -> None:
    """At the end of the program. It must neither be heard nor change how the program ends."""
    if os.getpid() != program:
        return
    gc.unfreeze()  # what the interpreter takes apart at its end is all there
    with contextlib.suppress(Exception):
        found = learnt.third_party(known)
        if found:
            text = learnt.as_text(found)
            fd = os.open(f'{path}.{program}', os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, 'w', encoding='utf-8') as file:
                file.write(text)
