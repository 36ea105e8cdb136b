"""Starts a warm parent."""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import os
import signal
import socket

from overmind.run.folders import Place, credentials, places

TYPE_CHECKING = False  # as in messages.py
if TYPE_CHECKING:
    from typing import NoReturn

SOCKET = 'socket'
SUCCESSOR = 'successor'


class Launch:
    """All that a warm parent is told when it starts."""

    def __init__(
        self,
        python: str,
        options: list[str],
        program: list[str],
        environment: dict[str, str],
        cwd: str,
        folder: str,
        learnt: str,  # path of the list of what its program imports
        root: str,  # the folder that the package overmind is in
        idle_seconds: float,
        listening: int = -1,
        warming: int = -1,  # the lock of a successor, held until it has taken over
        up: int = -1,  # the end of a pipe, closed when the parent itself has called listen()
        replaces: int = 0,  # the process that a successor takes over from
        starts: int = 0,  # how many times it has been started to leave something out
    ) -> None:
        self.python = python
        self.options = options
        self.program = program
        self.environment = environment
        self.cwd = cwd
        self.folder = folder
        self.learnt = learnt
        self.root = root
        self.idle_seconds = idle_seconds
        self.listening = listening
        self.warming = warming
        self.up = up
        self.replaces = replaces
        self.starts = starts

    def but(self, **changes: int) -> Launch:
        """Another one, with some numbers changed."""
        return Launch(**{**vars(self), **changes})

    @staticmethod
    def read(fd: int) -> Launch:
        with open(fd, 'rb') as file:
            file.seek(0)
            return Launch(**marshal.load(file))

    @property
    def place(self) -> Place:
        return Place(self.folder)


def obtain(launch: Launch, most: int, stale: int | None) -> socket.socket | None:
    """A connection to the warm parent, which is started where there is none. It answers when it has its imports.

    ``stale`` is the process of a parent that is not to be used any more.
    """
    place = launch.place
    if stale is None:
        connection = place.connect()
        if connection is not None:
            with contextlib.suppress(FileNotFoundError):
                os.utime(place.path(SOCKET))
            return connection
    with place.locked():
        connection = place.connect()
        if connection is None or credentials(connection)[0] == stale:
            _make_room(place, most)
            with place.listen(SOCKET) as listening:
                start(launch.but(listening=listening.fileno()))
            connection = place.connect()
    return connection


def serving(place: Place) -> int | None:
    """The process that listens in a folder now."""
    connection = place.connect()
    if connection is None:
        return None
    with connection:
        return credentials(connection)[0]


def lock_now(fd: int) -> bool:
    """Whether this lock could be had at once."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_room(place: Place, most: int) -> None:
    """End the parents that were used least recently."""
    others = 0
    for other in places():
        if other.folder != place.folder and (connection := other.connect()) is not None:
            connection.close()
            others += 1
            if others >= most:
                for name in (SOCKET, SUCCESSOR):
                    stop(other, name)


def stop(place: Place, name: str) -> bool:
    """End the parent that listens there, and say whether there was one. The programs that it started go on."""
    connection = place.connect(name)
    if connection is None:
        return False
    with connection:
        pid, _ = credentials(connection)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place.path(name))
    return True


def start(launch: Launch) -> None:
    """Run a parent in a session of its own, as no child of this process. Returns when its socket names it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _become(launch.but(up=writing))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)


def _become(launch: Launch) -> NoReturn:
    place = launch.place
    boot = os.path.join(os.path.dirname(__file__), 'boot')
    passed = os.memfd_create('overmind-run', 0)
    with open(passed, 'wb', closefd=False) as file:
        marshal.dump(vars(launch), file)
    environment = dict(launch.environment)
    path = environment.get('PYTHONPATH')
    environment['PYTHONPATH'] = f'{boot}{os.pathsep}{path}' if path else boot
    environment['OVERMIND_RUN_BOOT'] = f'{launch.root}\n{boot}\n{passed}'
    for fd in map(int, os.listdir('/proc/self/fd')):
        with contextlib.suppress(OSError):  # the listing's own
            os.set_inheritable(fd, fd in (passed, launch.listening, launch.warming, launch.up))
    os.chdir(launch.cwd)
    output = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    files = ((os.devnull, os.O_RDONLY), (place.path('output'), output), (place.path('errors'), output))
    for fd, (path, how) in enumerate(files):
        os.dup2(os.open(path, how, 0o600), fd)
        os.set_inheritable(fd, True)
    for number in signal.valid_signals():
        with contextlib.suppress(OSError):  # that of KILL and STOP stays
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Not posix_spawn: glibc would have the parent, and all its children, ignore a signal of its own.
    os.execve(launch.python, [launch.python, *launch.options, *launch.program], environment)
