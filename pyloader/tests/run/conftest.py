"""Sockets, state and an installed library of the test's own, and nothing left behind."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator

import pytest
from warmbench import Bench


@pytest.fixture
def bench(tmp_path: pathlib.Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.warm('--stop')
    try:
        bench.wait_for(lambda: not bench.processes())
    finally:
        for pid in bench.processes():
            os.kill(pid, signal.SIGKILL)
