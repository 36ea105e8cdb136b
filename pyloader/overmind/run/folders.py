"""Where warm parents have their sockets, and where the learnt modules are kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct

from overmind.private import why_not_private

TYPE_CHECKING = False  # as in messages.py
if TYPE_CHECKING:
    from collections.abc import Iterator


class NoFolder(Exception):
    """There is no folder that is the user's alone."""


def runtime() -> str:
    """The folder of all sockets, closed to others. Made if it is not there; NoFolder if it is not ours alone."""
    uid = os.geteuid()
    base = os.environ.get('XDG_RUNTIME_DIR', '')
    if os.path.isabs(base) and why_not_private(base) is None:
        return _private(os.path.join(base, 'overmind-run'))
    return _private(f'/tmp/overmind-run-{uid}')


def state() -> str:
    """The folder of what was learnt, kept over a reboot."""
    base = os.environ.get('XDG_STATE_HOME', '')
    base = base if os.path.isabs(base) else os.path.expanduser('~/.local/state')
    return os.path.join(base, 'overmind-run')


def _private(folder: str) -> str:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as e:
        raise NoFolder(f'{folder} cannot be made: {e.strerror}') from e
    why = why_not_private(folder)
    if why is not None:
        raise NoFolder(f'{folder} {why}')
    return folder


class Place:
    """The folder of one warm parent."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One starter at a time. The kernel frees the lock when its holder dies."""
        fd = os.open(self.path('lock'), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def listen(self, name: str) -> socket.socket:
        """A listening socket under a name that nobody else uses now."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))
        listening = _socket()
        with _short(self.folder, name) as address:
            listening.bind(address)
        listening.listen(128)
        return listening

    def connect(self, name: str = 'socket') -> socket.socket | None:
        """A connection to the parent, also while it still imports; None if there is none."""
        connection = _socket()
        try:
            with _short(self.folder, name) as address:
                connection.connect(address)
            if credentials(connection)[1] == os.geteuid():
                return connection
        except OSError:
            pass
        connection.close()
        return None


def places() -> list[Place]:
    """The folders of all parents of this user, those used last first. A folder need not have a parent."""
    base = runtime()
    with os.scandir(base) as entries:
        found = [Place(entry.path) for entry in entries if entry.is_dir()]
    return sorted(found, key=last_used, reverse=True)


def last_used(place: Place) -> float:
    """When a program was last run from there, in seconds of time.time(); 0 if never."""
    try:
        return os.stat(place.path('socket')).st_mtime
    except OSError:
        return 0


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end; for a listener, those that called listen()."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize('3i'))
    pid, uid, _ = struct.unpack('3i', packed)
    return pid, uid


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextlib.contextmanager
def _short(folder: str, name: str) -> Iterator[str]:
    """An address of a socket, however long its path is: the kernel takes 107 bytes."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f'/proc/self/fd/{fd}/{name}'
    finally:
        os.close(fd)
