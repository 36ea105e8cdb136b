"""A loader that takes a while, importable from the processes of a test."""

from __future__ import annotations

import time
from typing import Any

import torch


def make(path: str) -> Any:
    time.sleep(0.5)
    return torch.load(path)
