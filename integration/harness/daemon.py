"""A daemon on a mount point of its own, gone without a trace at the end, whatever happened."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from integration.harness.places import daemon_binary

# How the loader reaches arenas, and the options of a daemon that make it so.
WAYS: dict[str, tuple[str, ...]] = {
    'passthrough': (),
    'fd': ('--passthrough=off',),
    'read': ('--passthrough=off', '--fd-passing=off'),
}
# For all daemons that do not choose for themselves.
DEFAULT_WAY = os.environ.get('OVERMIND_E2E_WAY', 'passthrough')

_MNT_DETACH = 2
_START_SECONDS = 20.0
_STOP_SECONDS = 20.0


class DaemonError(Exception):
    """The daemon did not start, did not stop, or a command of its failed."""


def mounts_under(folder: Path) -> list[str]:
    """Mount points at or below a folder, the innermost first. Touches no mount."""
    found = []
    for line in Path('/proc/self/mountinfo').read_text().splitlines():
        point = line.split()[4].encode().decode('unicode_escape')
        if point == str(folder) or point.startswith(f'{folder}/'):
            found.append(point)
    return sorted(found, reverse=True)


def detach(folder: Path) -> None:
    """Take away every mount at or below a folder, also one whose daemon is dead."""
    libc = ctypes.CDLL(None, use_errno=True)
    for point in mounts_under(folder):
        if libc.umount2(os.fsencode(point), _MNT_DETACH):
            number = ctypes.get_errno()
            raise DaemonError(f'cannot unmount {point}: {os.strerror(number)}')


def command(*arguments: str, root: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one subcommand of overmind-fs."""
    name, *rest = arguments
    line = [str(daemon_binary()), name, *(['--root', str(root)] if root else []), *rest]
    environment = {key: value for key, value in os.environ.items() if key != 'OVERMIND_ROOT'}
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment)
    if check and done.returncode:
        raise DaemonError(f'overmind-fs {" ".join(arguments)}: status {done.returncode}: {done.stderr.strip()}')
    return done


def _options(chosen: tuple[str, ...]) -> tuple[str, ...]:
    choice = any(option.startswith(('--passthrough', '--fd-passing')) for option in chosen)
    return chosen if choice else (*chosen, *WAYS[DEFAULT_WAY])


def _state(task: Path) -> str:
    return (task / 'stat').read_text().rpartition(') ')[2][0]


class Daemon:
    """``overmind-fs mount`` in the foreground, as a child of this process."""

    def __init__(self, root: Path, *options: str, log: Path | None = None, prefix: Sequence[str] = ()) -> None:
        """``prefix`` is a command line that becomes the daemon, or has it as its only child."""
        self.root = root
        self._prefix = prefix
        self.log = log or root.with_name(root.name + '.log')
        self._options = _options(options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise DaemonError('the daemon was not started')
        return self._process.pid

    def start(self) -> Daemon:
        self.root.mkdir(parents=True, exist_ok=True)
        if not daemon_binary().exists():
            raise DaemonError(f'{daemon_binary()} does not exist: run `make build` first')
        with self.log.open('ab') as log:
            # Nothing goes because the machine that runs the tests is short of memory.
            line = [*self._prefix, str(daemon_binary()), 'mount', '--pressure=off', *self._options, str(self.root)]
            self._process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # Reaped when it ends and not later, so that no zombie is left.
        threading.Thread(target=self._process.wait, daemon=True).start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_serving():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop(check=False)
                raise DaemonError(f'the daemon did not start: {self.log_text()[-2000:].strip()}')
            time.sleep(0.01)
        return self

    def _is_serving(self) -> bool:
        try:
            return bool(mounts_under(self.root)) and self.alive() and (self.root / 'status.json').exists()
        except OSError:  # the mount of a daemon before this one, dead
            return False

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL; the mount stays behind, dead."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """SIGSTOP, and in effect for every thread of it."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            while any(_state(task) != 'T' for task in Path(f'/proc/{self.pid}/task').iterdir()):
                time.sleep(0.001)
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def log_text(self) -> str:
        return self.log.read_text(errors='replace') if self.log.exists() else ''

    def stop(self, check: bool = True) -> None:
        """Unmount as a user would; by force where that fails, which is an error unless ``check`` is False."""
        if self._process is None:
            return
        problem = ''
        try:
            if self.alive() and mounts_under(self.root):
                command('umount', str(self.root))
                self._process.wait(_STOP_SECONDS)
        except (DaemonError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if self.alive():
            problem = problem or 'it was still running'
            self.kill()
        detach(self.root)
        self._process = None
        if problem and check:
            raise DaemonError(f'the daemon did not stop: {problem}')

    def __enter__(self) -> Daemon:
        return self.start() if self._process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(check=kind is None)
