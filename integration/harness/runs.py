"""The program under test, each time in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from integration.harness.conversation import Conversation
from integration.harness.places import PROGRAM, REPOSITORY

_QUIET = {
    'HF_HUB_OFFLINE': '1',
    'HF_HUB_DISABLE_PROGRESS_BARS': '1',
    'DIFFUSERS_VERBOSITY': 'error',
    'TRANSFORMERS_VERBOSITY': 'error',
    'PYTHONWARNINGS': 'ignore',
    'CUDA_VISIBLE_DEVICES': '',
}
_OURS = 'OVERMIND_'


class RunError(Exception):
    """The program under test failed."""


def environment(root: Path | None = None, **more: str) -> dict[str, str]:
    """The present environment without the cache's variables, then those that are wanted."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
    path = os.pathsep.join(part for part in (str(REPOSITORY), kept.get('PYTHONPATH', '')) if part)
    return {**kept, **_QUIET, 'PYTHONPATH': path, **({'OVERMIND_ROOT': str(root)} if root else {}), **more}


def _line(*arguments: str | Path) -> list[str]:
    return [sys.executable, str(PROGRAM), *map(str, arguments)]


def _result(line: list[str], stdout: str, stderr: str, status: int) -> dict[str, Any]:
    """The last line of a finished program, which is its result, and what it wrote to standard error."""
    lines = stdout.splitlines()
    if status or not lines:
        raise RunError(f'{" ".join(line)}: status {status}\n{stderr[-4000:]}')
    result: dict[str, Any] = json.loads(lines[-1])
    return {**result, 'stderr': stderr}


def run(*arguments: str | Path, env: Mapping[str, str] | None = None, timeout: float = 300) -> dict[str, Any]:
    """Run the program to its end."""
    return run_line(_line(*arguments), env or environment(), timeout)


def run_line(line: list[str], env: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """Run any program whose last line is its result, in JSON."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=timeout, env=env)
    except subprocess.TimeoutExpired as error:
        raise RunError(f'{" ".join(line)}: no result in {timeout:.0f} s') from error
    return _result(line, done.stdout, done.stderr, done.returncode)


def start_waiting(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Conversation:
    """Start the program with ``--wait``: it goes on each time it is told to."""
    return Conversation(_line(*arguments, '--wait'), env or environment())
