"""A child process that is asked by a line of text and answers by a line of JSON."""

from __future__ import annotations

import json
import selectors
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Protocol


class ConversationError(Exception):
    """The child ended, or did not answer in time."""


class Process(Protocol):
    """What is used of a subprocess.Popen whose streams are pipes of text."""

    pid: int

    @property
    def stdin(self) -> IO[str] | None: ...
    @property
    def stdout(self) -> IO[str] | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class Dialogue:
    """A conversation with a process that was started already, and whose standard error goes to a file.

    Use it as a context manager: the child is killed at the end if it still runs.
    """

    def __init__(self, process: Process, errors: IO[str], patience: float = 120) -> None:
        self._process, self._errors, self._patience = process, errors, patience

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stderr(self) -> str:
        """What the child has written to standard error so far."""
        self._errors.seek(0)
        return self._errors.read()

    def send(self, text: str = '') -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + '\n')
        self._process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(self._patience):
                raise ConversationError(f'no answer in {self._patience:.0f} s: {self.stderr[-2000:]}')
        line = self._process.stdout.readline()
        if not line:
            raise ConversationError(f'the child ended with status {self._process.wait()}: {self.stderr[-2000:]}')
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, text: str = '') -> dict[str, Any]:
        self.send(text)
        return self.read()

    def finish(self) -> int:
        """Close its input and let it run to its end; its status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(self._patience)

    def wait(self) -> int:
        """Its status, when it has ended by itself or by a signal."""
        return self._process.wait(self._patience)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Dialogue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Conversation(Dialogue):
    """One with a new process."""

    def __init__(self, line: Sequence[str], env: Mapping[str, str], patience: float = 120) -> None:
        errors, pipe = error_file(), subprocess.PIPE
        process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=env)
        super().__init__(process, errors, patience)

    def __enter__(self) -> Conversation:
        return self


def error_file() -> IO[str]:
    """For the standard error of a child. Appending, since reading it here moves the place where the child writes."""
    return tempfile.TemporaryFile('a+')
