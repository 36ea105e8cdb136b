"""Loaders and objects for which something fails, and what must hold after that."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch

from overmind.api import load

LOG = logging.getLogger('loader-calls')


def make(path: str) -> dict[str, Any]:
    LOG.info('make')
    return {'weight': torch.load(path)['weight'], 'text': 'x' * 300_000}


class Unsettled:
    """Can be written, and not be read back."""

    def __getstate__(self) -> dict[str, int]:
        return {'a': 1}

    def __setstate__(self, state: dict[str, int]) -> None:
        raise ValueError('only here')


class Prickly:
    """Whoever looks at it gets hurt."""

    @property
    def model(self) -> Any:
        raise RuntimeError('do not look')


def unsettled(path: str) -> Any:
    return [Unsettled(), torch.load(path)['weight']]


def prickly(path: str) -> Any:
    return Prickly()


def fails(path: str, kind: type[BaseException]) -> Any:
    LOG.info('fails')
    raise kind('from the user')


def outer(path: str) -> dict[str, Any]:
    return {'inner': load(make, path)['weight'], 'own': torch.ones(2)}


def slow(path: str) -> Any:
    LOG.info('slow')
    time.sleep(0.3)
    return torch.load(path)['weight']


def leaves_a_child(path: str) -> Any:
    """The child lives on for as long as it is let."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    return [writing, torch.load(path)['weight']]


Falls = Callable[..., Any]


def held_open(part: str) -> list[str]:
    """The open files of this process whose paths contain that."""
    found = []
    for fd in os.listdir('/proc/self/fd'):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f'/proc/self/fd/{fd}'))
    return [path for path in found if part in path]


def assert_made(value: Any) -> None:
    assert torch.equal(value['weight'], torch.arange(6.0))
    assert len(value['text']) == 300_000


def assert_clean(root: pathlib.Path, entries: int) -> None:
    assert not list((root / 'staging').iterdir())
    assert len(list((root / 'pipelines').iterdir())) == entries
