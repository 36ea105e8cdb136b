"""A fresh interpreter for each script: what matters here is the order of imports."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import overmind

SOURCES = Path(overmind.__file__).parents[1]
STUB = """
import sys, types
from overmind import patches
calls = []
def cached_call(fn, args, kwargs):
    calls.append((fn, args, kwargs))
    return ('cached', fn, args, kwargs)
sys.modules['overmind.cache'] = cache = types.ModuleType('overmind.cache')
cache.cached_call = cached_call
import overmind
overmind.cache = cache
"""
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(script: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, '-c', STUB + textwrap.dedent(script)],
            cwd=tmp_path,
            env={
                'PATH': os.environ['PATH'],
                'HOME': str(tmp_path),
                'PYTHONPATH': os.pathsep.join([str(SOURCES), os.environ.get('PYTHONPATH', '')]),
                'OVERMIND_ROOT': str(tmp_path / 'root'),
                'HF_HUB_OFFLINE': '1',
                **env,
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run
