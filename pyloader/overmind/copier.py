"""The memory of a real object as it was when its loader returned, in a forked process that copies it into arenas.

The program goes on meanwhile and may change or free everything; the kernel keeps what the copier sees.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Sequence

from overmind.arena import Plan
from overmind.errors import StoreError
from overmind.locks import keep_from_children, let_children_have

# docs/protocol.md names them; cext/src/copier.h has them too.
_COPY_MAPPED, _COPY_WRITTEN, _COMPARE = 1, 2, 3
_REQUEST, _REPLY = struct.Struct('=II'), struct.Struct('=q')
_READY_SECONDS = 30.0  # a terabyte takes a while to unmap
_ENDED = 'the process that copies the weights was killed; the kernel does that where memory is short'
_WALL = 0x40000000  # of waitid: also a child that sends no signal when it ends


class Copier:
    """Made by one thread with the GIL; after that one thread at a time may ask it for something.

    Raises OSError where no such process can be had.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        import overmind_cext

        self._numbers = {plan.name: n for n, plan in enumerate(plans)}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        keep_from_children(self._socket.fileno())
        with theirs:
            try:
                images = [(plan.nbytes, plan.header, plan.pieces) for plan in plans]
                self._pidfd = overmind_cext.start_copier(theirs.fileno(), images)
                keep_from_children(self._pidfd)
            except BaseException:
                self._close_socket()
                raise
        try:
            self._socket.settimeout(_READY_SECONDS)
            self._reply()
            self._socket.settimeout(None)
        except BaseException:
            self.close()
            raise

    def copy(self, plan: Plan, fd: int, mapped: bool) -> None:
        """Write a whole arena into its file, through a mapping or not."""
        self._ask(_COPY_MAPPED if mapped else _COPY_WRITTEN, plan, fd)

    def agreement(self, plan: Plan, fd: int) -> int:
        """How many bytes of a file agree with the plan, from its start; plan.nbytes where all do."""
        return self._ask(_COMPARE, plan, fd)

    def close(self) -> None:
        """End the process, whatever it is doing. Once."""
        self._close_socket()
        self.kill()
        pidfd, self._pidfd = self._pidfd, -1
        let_children_have(pidfd)
        with contextlib.suppress(OSError):
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | _WALL)
        with contextlib.suppress(OSError):
            os.close(pidfd)

    def kill(self) -> None:
        """Also from another thread; who has asked it for something gets StoreError."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _close_socket(self) -> None:
        let_children_have(self._socket.fileno())
        self._socket.close()

    def _ask(self, command: int, plan: Plan, fd: int) -> int:
        handed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))]
        try:
            self._socket.sendmsg([_REQUEST.pack(command, self._numbers[plan.name])], handed)
            return self._reply()
        except ConnectionError as e:
            raise StoreError(_ENDED) from e

    def _reply(self) -> int:
        data = self._socket.recv(_REPLY.size)
        if len(data) != _REPLY.size:
            raise StoreError(_ENDED)
        value = int(_REPLY.unpack(data)[0])
        if value < 0:
            raise OSError(-value, os.strerror(-value))
        return value


def seen_by_others(plans: Sequence[Plan]) -> bool:
    """Whether some of the memory is mapped shared and writable: a forked process would see later changes of it."""
    ranges = []
    with open('/proc/self/maps', 'rb') as lines:
        for line in lines:
            span, access, _ = line.split(b' ', 2)
            if access[1:2] == b'w' and access[3:4] == b's':
                low, high = span.split(b'-')
                ranges.append((int(low, 16), int(high, 16)))
    if not ranges:
        return False
    starts = [low for low, _ in ranges]  # in order, and no two overlap
    for plan in plans:
        for _, address, nbytes in plan.pieces:
            at = bisect.bisect_left(starts, address + nbytes) - 1
            if at >= 0 and ranges[at][1] > address:
                return True
    return False
