"""Starts a warm parent."""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import os
import signal
import socket
import stat
from dataclasses import asdict, dataclass

from overmind.run.folders import Place, credentials, places

SOCKET = 'socket'
SUCCESSOR = 'successor'


@dataclass
class Launch:
    """All that a warm parent is told when it starts."""

    python: str
    options: list[str]
    program: list[str]
    environment: dict[str, str]
    cwd: str
    folder: str
    learnt: str  # path of the list of what its program imports
    root: str  # the folder that the package overmind is in
    idle_seconds: float
    listening: int = -1
    warming: int = -1  # the lock of a successor, held until it has taken over
    replaces: int = 0  # the process that a successor takes over from
    starts: int = 0  # how many times it has been started to leave something out

    @staticmethod
    def read(fd: int) -> Launch:
        with open(fd, 'rb') as file:
            file.seek(0)
            return Launch(**marshal.load(file))

    @property
    def place(self) -> Place:
        return Place(self.folder)


def obtain(launch: Launch, most: int, stale: tuple[int, int] | None) -> socket.socket | None:
    """A connection to the warm parent, which is started where there is none. It answers when it has its imports.

    ``stale`` is the socket (device and inode) of a parent that is not to be used any more.
    """
    place = launch.place
    if stale is None:
        connection = place.connect()
        if connection is not None:
            os.utime(place.path(SOCKET))
            return connection
    with place.locked():
        if stale is not None and which(place) == stale:
            os.unlink(place.path(SOCKET))
        connection = place.connect()
        if connection is None:
            _make_room(place, most)
            with place.listen(SOCKET) as listening:
                launch.listening = listening.fileno()
                start(launch)
            connection = place.connect()
    return connection


def which(place: Place) -> tuple[int, int] | None:
    """The socket that stands in a folder now."""
    try:
        info = os.lstat(place.path(SOCKET))
    except FileNotFoundError:
        return None
    return (info.st_dev, info.st_ino) if stat.S_ISSOCK(info.st_mode) else None


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
            with connection:
                others += 1
                if others >= most:
                    stop(connection)


def stop(connection: socket.socket) -> None:
    """End a parent. The programs that it started go on."""
    pid, _ = credentials(connection)
    if pid != os.getpid():
        os.kill(pid, signal.SIGTERM)


def start(launch: Launch) -> None:
    """Run a parent in a session of its own, as no child of this process."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _spawn(launch)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _spawn(launch: Launch) -> None:
    place = launch.place
    boot = os.path.join(os.path.dirname(__file__), 'boot')
    passed = os.memfd_create('overmind-run', 0)
    with open(passed, 'wb', closefd=False) as file:
        marshal.dump(asdict(launch), file)
    environment = dict(launch.environment)
    path = environment.get('PYTHONPATH')
    environment['PYTHONPATH'] = f'{boot}{os.pathsep}{path}' if path else boot
    environment['OVERMIND_RUN_BOOT'] = f'{launch.root}\n{boot}\n{passed}'
    for fd in map(int, os.listdir('/proc/self/fd')):
        with contextlib.suppress(OSError):  # the listing's own
            os.set_inheritable(fd, fd in (passed, launch.listening, launch.warming))
    os.chdir(launch.cwd)
    output = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    os.posix_spawn(
        launch.python,
        [launch.python, *launch.options, *launch.program],
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, place.path('output'), output, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, place.path('errors'), output, 0o600),
        ],
        setsigmask=(),
        setsigdef=[number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)],
    )
