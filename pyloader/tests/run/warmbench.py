"""Runs programs under ``python`` and under ``overmind run``, with sockets, state and a library of the test's own."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PACKAGE = pathlib.Path(__file__).parents[2]
WARM = [sys.executable, '-m', 'overmind.run']
SECONDS = 120  # for anything that only takes long when something is wrong

_LIBRARY = """
import random
from . import part
number = random.random()
def double(x): return 2 * x
"""


class Bench:
    """A folder for programs, an installed library ``toylib``, and the environment that both kinds of run get."""

    def __init__(self, base: pathlib.Path) -> None:
        self.work = base / 'work'
        self.site = base / 'site-packages'
        self.runtime = base / 'run'
        for folder in (self.work, self.site / 'toylib', self.site / 'toylib-1.0.dist-info'):
            folder.mkdir(parents=True)
        self.runtime.mkdir(mode=0o700)
        (self.site / 'toylib' / '__init__.py').write_text(_LIBRARY)
        (self.site / 'toylib' / 'part.py').write_text('value = 1\n')
        clean = {name: value for name, value in os.environ.items() if not name.startswith(('PYTHON', 'OVERMIND'))}
        self.environment = {
            **clean,
            'PYTHONPATH': f'{self.site}{os.pathsep}{PACKAGE}',
            'PYTHONDONTWRITEBYTECODE': '1',
            'XDG_RUNTIME_DIR': str(self.runtime),
            'XDG_STATE_HOME': str(base / 'state'),
        }

    def write(self, name: str, text: str) -> pathlib.Path:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def python(self, *words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        return self._run([interpreter(), *words], **more)

    def warm(self, *words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        return self._run([*WARM, *words], **more)

    def _run(self, line: list[str], **more: Any) -> subprocess.CompletedProcess[bytes]:
        extra = more.pop('env', {})
        more.setdefault('stdin', None if 'input' in more else subprocess.DEVNULL)
        more.setdefault('stdout', subprocess.PIPE)
        more.setdefault('stderr', subprocess.PIPE)
        return subprocess.run(
            line, cwd=self.work, env={**self.environment, **extra}, timeout=SECONDS, check=False, **more
        )

    def listed(self) -> list[list[str]]:
        """The words of each line of --list."""
        return [line.split() for line in self.warm('--list').stdout.decode().splitlines()[1:]]

    def warm_up(self, *words: str, modules: int = 2) -> None:
        """Run until the modules that the program imports are imported in advance."""
        assert self.warm(*words).returncode is not None
        self.wait_for(lambda: any(line[3] == str(modules) for line in self.listed()))

    def parent(self) -> int:
        """The process of the only warm parent."""
        [line] = self.listed()
        return int(line[0])

    def start(self, *words: str, **more: Any) -> subprocess.Popen[bytes]:
        """A run in the background; its pipes are unbuffered."""
        extra = more.pop('env', {})
        pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, **more}
        env = {**self.environment, **extra}
        return subprocess.Popen([*WARM, *words], cwd=self.work, env=env, bufsize=0, **pipes)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < until, 'it did not come about'
            time.sleep(0.02)

    def processes(self) -> list[int]:
        """All that has this test's sockets in its environment, and is neither gone nor this test."""
        mark = f'XDG_RUNTIME_DIR={self.runtime}'.encode()
        found = []
        for name in os.listdir('/proc'):
            if name.isdecimal() and int(name) != os.getpid():
                try:
                    environment = pathlib.Path('/proc', name, 'environ').read_bytes()
                except OSError:
                    continue
                if mark in environment.split(b'\0'):
                    found.append(int(name))
        return found


def interpreter() -> str:
    from overmind.run.identity import interpreter as beside

    return os.path.normpath(beside())


def output(done: subprocess.CompletedProcess[bytes]) -> tuple[int, str, str]:
    """Exit code, output and errors, without addresses."""
    out, error = (
        re.sub(rb'0x[0-9a-f]{6,}', b'0x...', text).decode(errors='replace') for text in (done.stdout, done.stderr)
    )
    return done.returncode, out, error
