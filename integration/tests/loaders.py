"""Loaders of the children: small, cheap to import, and each with something that matters."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Any

import torch

LARGE_BYTES = 64 << 20


def assorted() -> dict[str, torch.Tensor]:
    """Tensors that are one contiguous storage, and such that are not."""
    base = torch.arange(6000, dtype=torch.float32).reshape(60, 100)
    matrix = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    return {
        'matrix': matrix,
        'half': torch.linspace(-1, 1, 1001).half(),
        'brain': torch.linspace(-3, 3, 77).bfloat16().reshape(7, 11),
        'flags': torch.tensor([True, False, True]),
        'bytes': torch.arange(5, dtype=torch.uint8),
        'scalar': torch.tensor(2.5),
        'empty': torch.zeros(0, 3),
        'transposed': torch.arange(20, dtype=torch.int32).reshape(4, 5).T,
        'view': base[10:20, 5:50],
        'alias': base,
    }


# Those of the above that are exactly one contiguous tensor over a storage of their own.
PLAIN = ('matrix', 'half', 'brain', 'flags', 'bytes', 'scalar')


def from_file(path: str) -> Any:
    return torch.load(path, weights_only=True)


def large() -> torch.Tensor:
    return torch.arange(LARGE_BYTES // 4, dtype=torch.int32)


def slow(signs: str) -> torch.Tensor:
    """Says that it has begun, by a file in a folder, and takes a minute while another file is there."""
    open(os.path.join(signs, f'begun-{os.getpid()}'), 'w').close()
    until = time.monotonic() + 60
    # Not os.path.exists, which is an input of the load: the file goes while it runs.
    while os.access(os.path.join(signs, 'wait'), os.F_OK) and time.monotonic() < until:
        time.sleep(0.01)
    return torch.arange(1000)


def held_up(name: str) -> torch.Tensor:
    """As slow, in a folder that no key knows."""
    return slow(os.environ['SIGNS'])


def many() -> dict[str, torch.Tensor]:
    return {f'tensor{number}': torch.tensor([number, number + 1]) for number in range(2000)}


def sized(name: str) -> torch.Tensor:
    """As large as the environment says, asked so that it is no input of the load."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return torch.full((int(getenv(b'SIZE') or b'10'),), 7, dtype=torch.uint8)


def numbered(number: str) -> torch.Tensor:
    return torch.arange(1000) + int(number)


def stopping() -> torch.Tensor:
    """Stops its process, which somebody has to let go on with SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return torch.arange(1000)
