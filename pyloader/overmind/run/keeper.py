"""Between a caller and its program: the program's parent process, which leads its session and reports how it ends.

One keeper for each run, so that running programs need no warm parent any more. It is forked from one, keeps out of the
program's memory, and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from overmind.run import messages, starter
from overmind.run.child import Setup
from overmind.run.folders import credentials
from overmind.run.identity import standing
from overmind.run.learnt import Learnt
from overmind.run.shadow import first_entry, plugins, shadowed

if TYPE_CHECKING:
    from overmind.run.parent import Parent

Start = Callable[[], None]

_IGNORED = ('SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGTSTP', 'SIGTTIN', 'SIGTTOU', 'SIGUSR1', 'SIGUSR2', 'SIGPIPE')


def keep(connection: socket.socket, parent: Parent) -> Start:
    """Returns in the forked child, with what it still has to do; the keeper itself never does."""
    with _never_returning():
        request, folder, fds = messages.receive_request(connection)
        os.fchdir(folder)
        os.close(folder)
        os.setsid()
        go, going = os.pipe()
        setup = Setup(request, fds, connection, parent, dispositions=_dispositions(), go=go)
        woken, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker)
        for name in _IGNORED:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        setup.lead_terminal()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for fd in (woken, waker, going):
                os.close(fd)
            return setup.apply
        for fd in (*fds, go):
            os.close(fd)
        _check(connection, parent, request)  # while the child prepares itself
        with contextlib.suppress(BrokenPipeError):  # the child could not, and has said so
            os.write(going, b'1')
        os.close(going)
        _Keeper(connection, pid, woken, request.terminal).run()
        _learn(parent, pid)
        os._exit(0)
    raise AssertionError('a keeper has returned')


@contextlib.contextmanager
def _never_returning() -> Iterator[None]:
    """Whatever goes wrong, this process must not go on as if it were the parent."""
    keeper = os.getpid()
    try:
        yield
    except BaseException as e:
        if os.getpid() == keeper and not isinstance(e, EOFError):
            traceback.print_exc()
        os._exit(1)


def _dispositions() -> dict[int, object]:
    """How Python, or a library in its import, treats each signal. That of SIGCHLD is the parent's own doing."""
    found: dict[int, object] = {}
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            found[int(number)] = signal.getsignal(number)
    found[signal.SIGCHLD] = signal.SIG_DFL
    return found


def _check(connection: socket.socket, parent: Parent, request: messages.Request) -> None:
    """Whether this parent may serve this caller now. If not, say so and end, before the child has started."""
    changed = parent.watch.changed()
    if changed is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(parent.pid, signal.SIGTERM)
        with open(parent.launch.place.path('replaced'), 'w', encoding='utf-8', errors='surrogateescape') as file:
            file.write(changed)
        messages.send(connection, 'stale', changed, parent.pid)
        os._exit(0)
    why = _why_not(request, parent)
    if why is not None:
        messages.send(connection, 'refused', why)
        os._exit(0)


def _why_not(request: messages.Request, parent: Parent) -> str | None:
    """Why the program cannot be a child of this parent; None if it can."""
    if request.standing != standing():
        return 'groups, capabilities, cgroup, namespaces or processors are others than those of the warm parent'
    preloaded, safe = parent.preloaded, bool(getattr(sys.flags, 'safe_path', False))
    first = first_entry(request.program, safe)
    folders = [*parent.own] if first is None else [first, *parent.own]
    return (
        shadowed(folders, preloaded.loaded, preloaded.missing)
        or shadowed(parent.later, frozenset(), preloaded.missing)
        or (plugins(first) if first is not None else None)
    )


class _Keeper:
    """Carries signals to the program, and its stops and its end to the caller."""

    def __init__(self, connection: socket.socket, pid: int, woken: int, terminal: bool) -> None:
        self._connection = connection
        self._pid = pid
        self._woken = woken
        self._terminal = terminal
        self._stopped = False

    def run(self) -> None:
        while True:
            readable, _, _ = select.select([self._connection.fileno(), self._woken], [], [])
            if self._woken in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                if self._has_ended():
                    return
            if self._connection.fileno() in readable:
                self._obey(messages.receive(self._connection))

    def _has_ended(self) -> bool:
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return False
            if os.WIFCONTINUED(status):
                if self._stopped:  # not by way of the caller, which would go on sleeping
                    self._stopped = False
                    with contextlib.suppress(OSError):
                        os.kill(credentials(self._connection)[0], signal.SIGCONT)
                continue
            if os.WIFSTOPPED(status):
                self._stopped = True
                self._tell('stopped', os.WSTOPSIG(status))
                continue
            self._tell('ended', status)
            if self._terminal:
                # When the leader of the session goes, the terminal does: not before the caller has read all of it.
                messages.receive(self._connection)
            self._connection.close()
            return True

    def _tell(self, *words: object) -> None:
        with contextlib.suppress(OSError):
            messages.send(self._connection, *words)

    def _obey(self, words: tuple[Any, ...] | None) -> None:
        if words is None:
            self._kill()
        _, number, group = words
        if number == signal.SIGCONT:
            self._stopped = False
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self._pid, number)
            else:
                os.kill(self._pid, number)

    def _kill(self) -> NoReturn:
        """The caller was killed: so is its program, with all that is in its group."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os._exit(0)


def _learn(parent: Parent, pid: int) -> None:
    """Note what the program imported, and have a successor import it if that was something new."""
    launch = parent.launch
    path = launch.place.path(f'learnt.{pid}')
    found = Learnt.read(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    if not found.modules:
        return
    Learnt(launch.learnt).add(found.modules)
    if not found.wanted:
        return
    warming = os.open(launch.place.path('warming'), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not starter.lock_now(warming):
        return  # a successor is on its way
    with launch.place.locked():
        if starter.serving(launch.place) != parent.pid:
            return  # the parent was stopped or replaced
        with launch.place.listen(starter.SUCCESSOR) as listening:
            starter.start(launch.but(listening=listening.fileno(), warming=warming, replaces=parent.pid, starts=0))
