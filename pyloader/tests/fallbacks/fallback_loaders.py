"""A loader whose result has the size that an attribute of a library's module says, which no key knows."""

from __future__ import annotations

import sys
from typing import Any

import torch


def zeros(name: str) -> Any:
    return torch.zeros(getattr(sys, 'zeros', 10), dtype=torch.uint8)
