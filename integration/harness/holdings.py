"""What a daemon holds: entries, leases, descriptors, memory; and that it lets go of them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.harness.daemon import Daemon

_PATIENCE = 60.0
_SHMEM_SLACK = 1 << 20
# The Go runtime and go-fuse (for splice) make these when they first need them, and keep them.
_KEPT = ('anon_inode:[eventpoll]', 'anon_inode:[eventfd]', 'anon_inode:[pidfd]', '/dev/null', 'pipe:')


def wait_until(condition: Callable[[], bool], what: Callable[[], object] | str, seconds: float = _PATIENCE) -> None:
    """Raises AssertionError with ``what`` when that does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.01)


def status(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / 'status.json').read_text())
    return found


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process are, as /proc calls it; sockets and pipes without their numbers."""
    found = []
    for number in os.listdir(f'/proc/{pid}/fd'):
        with contextlib.suppress(FileNotFoundError):
            name = os.readlink(f'/proc/{pid}/fd/{number}')
            found.append(name.partition('[')[0] if name.startswith(('socket:', 'pipe:')) else name)
    return found


def arenas(pid: int) -> list[str]:
    """The memfds that a process has open or mapped."""
    maps = Path(f'/proc/{pid}/maps').read_text().splitlines()
    mapped = [line.split(maxsplit=5)[5] for line in maps if '/memfd:' in line]
    return [name for name in [*open_files(pid), *mapped] if name.startswith('/memfd:')]


def _is_usable(folder: Path, limit: int) -> bool:
    """Whether a new cgroup counts memory, and has that limit now."""
    if not (folder / 'memory.stat').exists():
        return False
    name = 'memory.max' if (folder / 'memory.max').exists() else 'memory.limit_in_bytes'  # of version 2 and 1
    with contextlib.suppress(OSError):
        if limit:
            (folder / name).write_text(str(limit))
        return True
    return False


class SharedMemory:
    """A memory cgroup, which tells how much shared memory a process has made that is still there, whoever holds it.
    Where there can be none it knows nothing. With a limit its processes cannot have more memory."""

    def __init__(self, name: str, limit: int = 0) -> None:
        self._folder: Path | None = None
        for parent in ('/sys/fs/cgroup/memory', '/sys/fs/cgroup'):
            folder = Path(parent, name)
            with contextlib.suppress(OSError):
                folder.mkdir()
                if _is_usable(folder, limit):
                    self._folder = folder
                    break
                folder.rmdir()

    def watch(self, pid: int) -> None:
        if self._folder is None:
            return
        try:
            (self._folder / 'cgroup.procs').write_text(str(pid))
        except OSError:
            self._folder.rmdir()
            self._folder = None

    def line(self, *words: str) -> list[str]:
        """A command line that runs in there from its start."""
        if self._folder is None:
            return [*words]
        return ['sh', '-c', 'echo $$ >"$0"/cgroup.procs && exec "$@"', str(self._folder), *words]

    @property
    def is_known(self) -> bool:
        return self._folder is not None

    def nbytes(self) -> int:
        if self._folder is None:
            return 0
        lines = [line.split() for line in (self._folder / 'memory.stat').read_text().splitlines()]
        return next(int(number) for name, number in lines if name == 'shmem')

    def close(self) -> None:
        """Once no process is in it."""
        if self._folder is not None:
            wait_until(self._is_removed, f'{self._folder} is still in use')

    def _is_removed(self) -> bool:
        assert self._folder is not None
        with contextlib.suppress(OSError):
            self._folder.rmdir()
        return not self._folder.exists()


@dataclass
class Holdings:
    """A daemon as it is now, before anything was loaded."""

    daemon: Daemon
    memory: SharedMemory

    def __post_init__(self) -> None:
        self.memory.watch(self.daemon.pid)
        self._files = self._opened()

    def _opened(self) -> Counter[str]:
        return Counter(name for name in open_files(self.daemon.pid) if name not in _KEPT)

    def assert_consistent(self) -> None:
        """When nobody uses the cache any more: no lease, no fill, nothing draining, and the sums fit."""
        root = self.daemon.root

        def idle() -> bool:
            now = status(root)
            return not (now['leases'] or now['fills']['staging'] or now['bytes']['staging'] or now['bytes']['draining'])

        wait_until(idle, lambda: status(root))
        assert os.listdir(root / 'staging') == []
        entries = list((root / 'pipelines').iterdir())
        sizes = [int(os.getxattr(entry, 'user.overmind.bytes')) for entry in entries]
        now = status(root)
        held = now['bytes']
        # What entries have in common is there once: two fills of the same, when one was there before the other began.
        assert (now['entries'], held['cached'] + held['shared']) == (len(entries), sum(sizes)), now
        assert held['cached'] <= now['limits']['max_bytes']

    def assert_back(self) -> None:
        """Without its entries, the daemon holds what it held at the start."""
        root = self.daemon.root
        self.assert_consistent()
        for entry in (root / 'pipelines').iterdir():
            entry.rmdir()
        now = status(root)
        assert (now['entries'], set(now['bytes'].values())) == (0, {0})
        wait_until(lambda: not arenas(self.daemon.pid), lambda: arenas(self.daemon.pid))
        # At the start there may have been one more, of what a daemon does then.
        wait_until(lambda: not self._opened() - self._files, lambda: self._opened() - self._files)
        wait_until(lambda: self.memory.nbytes() < _SHMEM_SLACK, self.memory.nbytes)


@contextlib.contextmanager
def watched(daemon: Daemon) -> Iterator[Holdings]:
    """At the end, when its clients are gone: the store is consistent, and what the daemon had it has given back; or it
    has died, and its memory is free. Stops the daemon."""
    memory = SharedMemory(f'overmind-{os.getpid()}-{daemon.pid}')
    try:
        held = Holdings(daemon, memory)
        yield held
        if daemon.alive():
            held.assert_back()
        daemon.stop()
        wait_until(lambda: memory.nbytes() == 0, memory.nbytes)
    finally:
        daemon.stop(check=False)
        memory.close()
