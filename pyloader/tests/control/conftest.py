"""A daemon of a few lines for each test."""

from __future__ import annotations

import gc
import os
import pathlib
from collections.abc import Iterator

import pytest
from fake import FakeDaemon, eventually


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[FakeDaemon]:
    root = tmp_path / 'root'
    root.mkdir(exist_ok=True)
    gc.collect()
    before = len(os.listdir('/proc/self/fd'))
    fake = FakeDaemon(root, tmp_path)
    yield fake
    fake.close()
    gc.collect()
    eventually(lambda: len(os.listdir('/proc/self/fd')) == before)
