"""numpy arrays in results: those that share memory with a tensor or with each other still do; strides are kept."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roundtrip import roundtrip

from overmind.errors import Unpicklable


def test_an_array_and_its_tensor() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    back = roundtrip({'array': a, 'tensor': torch.from_numpy(a), 'part': torch.from_numpy(a)[1], 'again': a})
    assert back['again'] is back['array']
    back['array'][1, 0] = 7
    assert back['tensor'][1, 0] == back['part'][0] == 7
    back['part'][1] = 8
    assert back['array'][1, 1] == 8
    assert a[1, 0] == 3  # the original is another one


def test_a_tensor_of_a_part() -> None:
    a = np.arange(8)
    back = roundtrip([torch.from_numpy(a[2:4]), a, a[::-2], np.arange(3)])
    back[1][3] = 50
    assert back[0].tolist() == [2, 50]
    assert back[2].tolist() == [7, 5, 50, 1]
    assert back[2].strides == (-16,)
    assert not np.shares_memory(back[3], back[1])
    assert [x.dtype for x in back[1:]] == [np.dtype('int64')] * 3


def test_arrays_of_a_parameter() -> None:
    module = torch.nn.Linear(2, 2)
    module.seen = module.weight.detach().numpy()
    back = roundtrip(module)
    with torch.no_grad():
        back.weight[0, 0] = 5
    assert back.seen[0, 0] == 5


@pytest.mark.parametrize('kind', ['>i2', 'S3', 'datetime64[s]', [('a', 'i4'), ('b', 'f8')]])
def test_views_of_every_dtype(kind: Any) -> None:
    a = np.zeros(4, dtype=kind)
    a.flags.writeable = False
    x, y = roundtrip([a, a[1:]])
    assert x.dtype == y.dtype == a.dtype
    assert np.shares_memory(x, y)
    assert not x.flags.writeable


def test_what_shares_nothing() -> None:
    a, b, c, d = roundtrip([np.arange(3), np.array([{}, None]), np.arange(6)[::2], np.ones((2, 3)).T])
    assert a.tolist() == [0, 1, 2]
    assert c.tolist() == [0, 2, 4]
    assert c.strides == (16,)
    assert d.strides == (8, 24)
    assert list(b) == [{}, None]


PIECES = st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 6), st.sampled_from([1, 2, -1]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), PIECES), min_size=1, max_size=5))
def test_any_pieces_of_two_arrays(pieces: list[tuple[int, tuple[bool, int, int, int]]]) -> None:
    bases = [np.arange(8, dtype=np.int32), np.arange(8, 16, dtype=np.int32)]
    made = []
    for base, (as_tensor, start, length, step) in pieces:
        part = bases[base][start : start + length]
        made.append(torch.from_numpy(part) if as_tensor else part[::step])
    back = roundtrip(made)
    as_arrays = [[np.asarray(x) for x in both] for both in (made, back)]
    for x, y in zip(*as_arrays, strict=True):
        assert x.tolist() == y.tolist()
        assert x.strides == y.strides or x.size < 2  # of a single element it says nothing
    overlaps = [[[np.shares_memory(a, b) for a in both] for b in both] for both in as_arrays]
    assert overlaps[0] == overlaps[1]


def test_arrays_over_a_file_are_refused(tmp_path: Path) -> None:
    """What is written to them is to be in the file."""
    np.save(tmp_path / 'a.npy', np.arange(6))
    for mode in ('r+', 'r', 'c'):
        mapped = np.load(tmp_path / 'a.npy', mmap_mode=mode)
        for result in (mapped, [np.asarray(mapped)], {'part': np.asarray(mapped[1:3])}):
            with pytest.raises(Unpicklable, match='maps a file'):
                roundtrip(result)
    with open(tmp_path / 'a.npy', 'r+b') as file, mmap.mmap(file.fileno(), 0) as memory:
        whole = np.frombuffer(memory, dtype=np.uint8)
        with pytest.raises(Unpicklable, match='maps a file'):
            roundtrip([whole])
        del whole


@pytest.mark.parametrize('kind', ['bytes', 'flag', 'broadcast'])
def test_arrays_that_cannot_be_written_to(kind: str) -> None:
    a = np.arange(4, dtype=np.int16)
    if kind == 'bytes':
        a = np.frombuffer(a.tobytes(), dtype=np.int16)
    elif kind == 'flag':
        a.flags.writeable = False
    else:
        a = np.broadcast_to(a, (3, 4))
    back, other = roundtrip([a, np.ones(2)])
    assert back.tolist() == a.tolist()
    assert (back.strides, back.flags.writeable) == (a.strides, False)
    assert other.flags.writeable
    with pytest.raises(ValueError, match='read-only'):
        back[0] = 1
