"""When the pages of a hit are faulted in, as its storages ask the helper for it."""

from __future__ import annotations

import os
from typing import Any

import overmind_cext
import pytest

from overmind import storages
from overmind.entries import OpenEntry, Way
from overmind.manifest.model import Arena, Manifest
from overmind.settings import Populate

GIGABYTE = 1 << 30


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Size and populate of each arena that is mapped."""
    found: list[tuple[int, int]] = []
    real = overmind_cext.map_arena

    def map_arena(fd: int, nbytes: int, populate: int = 0, **more: Any) -> object:
        found.append((nbytes, populate))
        return real(fd, nbytes, 0, **more)  # gigabytes of holes: nothing should fill them here

    monkeypatch.setattr(overmind_cext, 'map_arena', map_arena)
    return found


@pytest.mark.parametrize(
    ('populate', 'access', 'sizes', 'when'),
    [
        ('auto', 'passthrough', [GIGABYTE], 2),
        ('auto', 'fd', [4096, GIGABYTE], 2),
        ('auto', 'passthrough', [GIGABYTE - 1, 4096], 0),
        ('auto', 'directory', [GIGABYTE], 0),  # a file that may be truncated
        ('yes', 'directory', [4096], 1),
        ('yes', 'passthrough', [GIGABYTE], 1),
        ('no', 'passthrough', [GIGABYTE], 0),
    ],
)
def test_when(asked: list[tuple[int, int]], populate: Populate, access: Way, sizes: list[int], when: int) -> None:
    import torch

    files = [os.memfd_create('arena', os.MFD_CLOEXEC) for _ in sizes]
    for fd, size in zip(files, sizes, strict=True):
        os.ftruncate(fd, size)
    entry = OpenEntry(Manifest('', arenas=[Arena('', size) for size in sizes]), b'', files, -1, access)
    storages.Mapped(torch, entry, populate)
    entry.close()
    assert asked == [(size, when) for size in sizes]
