"""Loaders that a process of its own runs; importable from there."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from typing import Any

import torch


class Odd(Exception):
    """Cannot be pickled back: its arguments are not those of its constructor."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f'{a} and {b}')


def make(path: str) -> Any:
    print('to stdout')
    print('to stderr', file=sys.stderr)
    import colorsys  # noqa: F401  a library that only the load needs

    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    random.random()
    torch.randn(1)
    return {'weight': torch.load(path), 'pid': os.getpid(), 'dtype': torch.empty(1)}


def raises(path: str) -> Any:
    raise FileNotFoundError(2, 'no such weights', path)


def raises_odd(path: str) -> Any:
    raise Odd(1, 2)


def exits(path: str) -> Any:
    raise SystemExit(3)


def ends(path: str, number: int, parent: int) -> Any:
    """Kills its process, unless that is the program's."""
    if os.getpid() != parent:
        os.kill(os.getpid(), number)
    return torch.load(path)


def opened(path: str) -> Any:
    return [open(path, 'rb')]


def random_weights(path: str) -> Any:
    return torch.randn(4)


def waits(path: str, sign: str) -> Any:
    with open(sign, 'w') as f:
        f.write(str(os.getpid()))
    time.sleep(60)


def wrap(inner: Any) -> Any:
    return {'inner': inner, 'pid': os.getpid()}
