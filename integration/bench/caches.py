"""What keeps loads for later processes: how it is emptied before a fill, and what a process is told of it."""

from __future__ import annotations

import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from multiprocessing.connection import Client
from pathlib import Path

from integration.bench.environments import OVERMIND_CACHE
from integration.harness.daemon import command
from integration.harness.runs import RunError

_START_SECONDS = 60


class Cache(ABC):
    """One kind of cache, for the time of a benchmark."""

    # Where the processes that use it find it, if anywhere.
    root: Path | None = None

    @abstractmethod
    def clear(self) -> None:
        """Empty, so that the next load fills it."""

    @abstractmethod
    def close(self) -> None:
        """Gone, with all memory and files."""


class Ours(Cache):
    def __init__(self, root: Path) -> None:
        self.root = root

    def clear(self) -> None:
        for entry in sorted((self.root / 'pipelines').iterdir()) if self.root else ():
            command('evict', entry.name, root=self.root)

    def close(self) -> None:
        self.clear()


class Theirs(Cache):
    """The server of overmind-cache, of which there can be one for each environment. It forgets nothing till it ends."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def clear(self) -> None:
        self.close()
        server = [str(OVERMIND_CACHE.python.parent / 'overmind-server')]
        with self._log.open('ab') as log:
            self._process = subprocess.Popen(
                server, env=OVERMIND_CACHE.variables(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        endpoint, key = self._address()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with Client(endpoint, authkey=key) as connection:
                    connection.send(('ping', (), {}))
                    if connection.recv() == 'pong':
                        return
            except OSError:
                pass
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RunError(f'the server of overmind-cache did not start: {self._log.read_text()[-2000:]}')
            time.sleep(0.1)

    def _address(self) -> tuple[str, bytes]:
        """As its clients find it; asked once, in its own environment."""
        program = 'from overmind.common import OvermindEnv as E; e = E.get(); print(e.comm_endpoint[1:], e.venv_hash)'
        line = [str(OVERMIND_CACHE.python), '-c', program]
        done = subprocess.run(line, env=OVERMIND_CACHE.variables(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunError(f'overmind-cache cannot be imported: {done.stderr.strip()[-2000:]}')
        endpoint, key = done.stdout.split()
        return f'\0{endpoint}', key.encode()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Packed(Cache):
    """The file into which flashpack packs what it is to load."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def converter(self, load: str, source: Path, dtype: str) -> list[str]:
        """Arguments of the interpreter that makes it."""
        return ['-m', 'integration.bench.pack', str(source), str(self.folder)]

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        self.clear()


class Unpickled(Packed):
    """The graph of a load as stock pickle writes it, its tensors as a table."""

    def converter(self, load: str, source: Path, dtype: str) -> list[str]:
        return ['-m', 'integration.bench.unpickling', load, str(source), str(self.folder), '--dtype', dtype]


def caches(root: Path, scratch: Path) -> dict[str, Cache]:
    """By the names that opponents know them by. ``root`` is a mount."""
    return {
        'overmind-fs': Ours(root),
        'overmind-cache': Theirs(scratch / 'overmind-cache.log'),
        'flashpack': Packed(scratch / 'flashpack'),
        'unpickled': Unpickled(scratch / 'unpickled'),
    }
