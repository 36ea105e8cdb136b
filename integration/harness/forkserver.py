"""Children that are forked from one process which has imported what they need: that takes 20 ms, and an import of torch
seconds. As multiprocessing's fork server, but every child is a program of its own, with streams and a status.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any

from integration.harness.conversation import ConversationError, Dialogue, error_file

_MESSAGE = 1 << 20  # bytes; an environment has a few thousand
# A forked process has only the thread that forked it. One heap for all threads makes address space predictable.
_FIXED = {'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1', 'MKL_NUM_THREADS': '1', 'MALLOC_ARENA_MAX': '1'}


class ForkServer:
    """The program ``line``, which must call :func:`serve` with its last argument. Use it as a context manager."""

    def __init__(self, line: Sequence[str], env: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [*line, str(fd)], env={**env, **_FIXED}, pass_fds=[fd], stdin=subprocess.DEVNULL
            )

    def fork(self, env: Mapping[str, str], stderr: int | None = None) -> Dialogue:
        """A child with this environment; its standard error goes to a file, or to a descriptor such as a terminal's."""
        errors = error_file()
        (their_in, our_in), (our_out, their_out) = os.pipe(), os.pipe()
        theirs = [their_in, their_out, errors.fileno() if stderr is None else stderr]
        try:
            pid = self._ask({'env': dict(env)}, theirs)['pid']
        finally:
            os.close(their_in)
            os.close(their_out)
        return Dialogue(_Forked(pid, open(our_in, 'w'), open(our_out), self._reap), errors)

    def _reap(self, pid: int) -> int:
        status: int = self._ask({'reap': pid})['status']
        return status

    def _ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
        message = self._socket.recv(_MESSAGE)
        if not message:
            raise ConversationError(f'the fork server ended with status {self._process.wait()}')
        answer: dict[str, Any] = json.loads(message)
        return answer

    def close(self) -> None:
        self._socket.close()
        self._process.wait(30)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Forked:
    """A child of the server as a Popen. Its number stays its own until it is reaped."""

    def __init__(self, pid: int, stdin: IO[str], stdout: IO[str], reap: Callable[[int], int]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self._reap = reap
        self._fd = os.pidfd_open(pid)
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            ended = select.poll()
            ended.register(self._fd, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f'process {self.pid}', timeout or 0)
            self._status = self._reap(self.pid)
            os.close(self._fd)
        return self._status

    def kill(self) -> None:
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)


def serve(fd: int) -> bool:
    """Fork a child for each request that comes over the socket. True in a child, which has its streams and environment
    then and is to do its work; False when the other end is closed."""
    assert len(os.listdir('/proc/self/task')) == 1, 'the children would miss the other threads'
    with socket.socket(fileno=fd) as requests:
        while True:
            message, fds, _, _ = socket.recv_fds(requests, _MESSAGE, 3)
            if not message:
                return False
            request = json.loads(message)
            if 'reap' in request:
                _, status = os.waitpid(request['reap'], 0)
                answer = {'status': os.waitstatus_to_exitcode(status)}
            else:
                pid = os.fork()
                if not pid:
                    _become(request['env'], fds)
                    return True
                answer = {'pid': pid}
            for number in fds:
                os.close(number)
            requests.send(json.dumps(answer).encode())


def _become(env: dict[str, str], streams: Sequence[int]) -> None:
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(env)
