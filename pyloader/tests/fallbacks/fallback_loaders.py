"""A loader whose result has the size that the environment says, which no key knows."""

from __future__ import annotations

import os
from typing import Any

import torch


def zeros(name: str) -> Any:
    return torch.zeros(int(os.environ.get('ZEROS', '10')), dtype=torch.uint8)
