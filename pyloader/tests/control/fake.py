"""A daemon of a few lines that says what a test wants."""

from __future__ import annotations

import os
import pathlib
import socket
import threading
import time
from collections.abc import Callable

import flatbuffers

from overmind.control import arena_fd
from overmind.control import client as module
from overmind.control.generated import control_generated as fb

NAME = 'model.safetensors'
# What a daemon does with a connection, once it has the request.
Answer = Callable[[socket.socket, fb.Request], None]


def reply(code: int = 0, message: str = '', version: int = 1, identifier: bytes = b'OVMC') -> bytes:
    b = flatbuffers.Builder()
    text = b.CreateString(message)
    fb.ReplyStart(b)
    fb.ReplyAddVersion(b, version)
    fb.ReplyAddCode(b, code)
    fb.ReplyAddMessage(b, text)
    b.FinishSizePrefixed(fb.ReplyEnd(b), identifier)
    return bytes(b.Output())


class FakeDaemon:
    """``control`` of a root folder; a request is answered by ``answer``, and kept."""

    def __init__(self, root: pathlib.Path, folder: pathlib.Path) -> None:
        self.root, self.requests, self.connections = root, [], 0
        self.answer: Answer = lambda s, r: None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / 'socket'))
        self._listener.listen()
        os.symlink(folder / 'socket', root / 'control')
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                s, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with s:
                message = s.recv(module.MAX_MESSAGE)
                if not message:
                    continue
                request = fb.Request.GetRootAs(message, 4)
                self.requests.append((request.Op(), request.Id(), request.Name(), request.Inode()))
                self.answer(s, request)

    def close(self) -> None:
        """Once the answer that is under way is done with its descriptors."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._listener.close()


def ask(daemon: FakeDaemon, seconds: float = 5) -> int:
    return arena_fd(str(daemon.root), 'pipelines', 'a', NAME, 7, seconds)


def give(path: str | os.PathLike[str], message: bytes, count: int = 1) -> Answer:
    def answer(s: socket.socket, _: object) -> None:
        fds = [os.open(path, os.O_RDONLY) for _ in range(count)]
        socket.send_fds(s, [message], fds)
        for fd in fds:
            os.close(fd)

    return answer


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
