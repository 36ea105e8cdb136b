"""OVERMIND_DROP_SOURCES: a fill gives the page cache of the files back."""

from __future__ import annotations

import ctypes
import mmap
import os
import pathlib

import pytest
import torch

from overmind.api import load, stats

PAGES = 2048


def from_file(path: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def resident(path: str) -> int:
    """Pages of a file that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
        seen = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(len(mapped)), seen)
        del start
        assert not failed, os.strerror(ctypes.get_errno())
    return sum(page & 1 for page in seen)


@pytest.fixture
def weights(tmp_path: pathlib.Path) -> str:
    """On disk, and in the page cache."""
    from safetensors.torch import save_file

    path = str(tmp_path / 'weights.safetensors')
    save_file({'weight': torch.arange(PAGES * mmap.PAGESIZE, dtype=torch.uint8)}, path)
    with open(path, 'rb') as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if resident(path):
            pytest.skip('files of this folder cannot leave the memory')
        file.read()
    assert resident(path) > PAGES
    return path


def test_sources_leave_the_page_cache(root: pathlib.Path, weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OVERMIND_DROP_SOURCES', '1')
    filled = load(from_file, weights)
    assert stats().misses == 1
    assert resident(weights) == 0
    assert torch.equal(load(from_file, weights)['weight'], filled['weight'])
    assert (stats().hits, resident(weights)) == (1, 0)


def test_they_stay_unless_it_is_set(root: pathlib.Path, weights: str) -> None:
    load(from_file, weights)
    assert stats().misses == 1
    assert resident(weights) > PAGES
