"""What a caller and the keeper of its program say to each other: packets of marshal, of one user and one Python."""

from __future__ import annotations

import array
import marshal
import os
import socket

TYPE_CHECKING = False  # typing takes 4 ms to import, as much as the rest of what a caller needs
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_MOST_FDS = 253  # of one packet; the kernel's limit
_PACKET = 1 << 16


class Request:
    """The caller's side of a process. Everything that a forked child can take over."""

    def __init__(
        self,
        program: list[str],
        arguments: list[str],
        options: list[str],
        environment: dict[str, str],
        standing: list[str],
        umask: int,
        limits: list[tuple[int, int, int]],  # resource, soft, hard
        nice: int,
        ignored: list[int],  # signals
        blocked: list[int],
        numbers: list[int],  # of the passed file descriptors, in the child
        terminal: bool,  # those of 0, 1 and 2 that are passed as a terminal are to be the controlling one
    ) -> None:
        self.program = program
        self.arguments = arguments
        self.options = options
        self.environment = environment
        self.standing = standing
        self.umask = umask
        self.limits = limits
        self.nice = nice
        self.ignored = ignored
        self.blocked = blocked
        self.numbers = numbers
        self.terminal = terminal


def send_request(connection: socket.socket, request: Request, fds: Sequence[int]) -> None:
    """The request goes in a file, since an environment may be larger than a packet."""
    body = os.memfd_create('overmind-run', os.MFD_CLOEXEC)
    folder = os.open('.', os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open(body, 'wb', closefd=False) as file:
            marshal.dump(vars(request), file)
        passed = array.array('i', [body, folder, *fds])
        connection.sendmsg([b'run'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    finally:
        os.close(body)
        os.close(folder)


def most_fds() -> int:
    return _MOST_FDS - 2


def receive_request(connection: socket.socket) -> tuple[Request, int, list[int]]:
    """The request, its working directory, and the passed file descriptors. EOFError if there is none."""
    fds = array.array('i')
    _, ancillary, flags, _ = connection.recvmsg(16, socket.CMSG_SPACE(_MOST_FDS * fds.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if len(fds) < 2 or flags & socket.MSG_CTRUNC:
        raise EOFError('the caller is gone')
    with open(fds[0], 'rb') as file:
        file.seek(0)
        request = Request(**marshal.load(file))
    return request, fds[1], list(fds[2:])


def send(connection: socket.socket, *words: Any) -> None:
    connection.send(marshal.dumps(words))


def receive(connection: socket.socket) -> tuple[Any, ...] | None:
    """The next packet; None if the other end is gone."""
    try:
        packet = connection.recv(_PACKET)
    except ConnectionError:
        return None
    if not packet:
        return None
    words: tuple[Any, ...] = marshal.loads(packet)
    return words
