"""A child process that is asked by a line of text and answers by a line of JSON."""

from __future__ import annotations

import json
import selectors
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any


class ConversationError(Exception):
    """The child ended, or did not answer in time."""


class Conversation:
    """Use it as a context manager: the child is killed at the end if it still runs."""

    def __init__(self, line: Sequence[str], env: Mapping[str, str], patience: float = 120) -> None:
        self._patience = patience
        # Appending, since reading it here moves the place where the child writes.
        self._errors = tempfile.TemporaryFile('a+')  # noqa: SIM115
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, env=env)

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

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
