"""Anything in the place of a manifest or of the daemon's answer: a value or a refusal, in bounded memory.

A few hundred cases as part of the tests; with FUZZTIME=5m for as long as that. Failures are found again by their seed,
which pytest shows, and what they were belongs into tests/corpus.
"""

from __future__ import annotations

import os
import pathlib
import time
import tracemalloc
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from roundtrip import NO_ARGUMENTS as ARGS
from roundtrip import write

from overmind.control.client import _reply
from overmind.entries import OpenEntry
from overmind.errors import CorruptEntry, StoreError
from overmind.manifest import decode
from overmind.manifest.encode import encode
from overmind.restore import restore

CORPUS = pathlib.Path(__file__).with_name('corpus')
# What the bytes may cost: small objects for every four of them, and something for the error.
FACTOR, FLOOR = 100, 256 << 10
EDGES = (0, 1, 4, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1, 2**63 - 1, 2**64 - 1)
UNITS = {'s': 1, 'm': 60, 'h': 3600}


def seconds() -> float:
    text = os.environ.get('FUZZTIME', '0s')
    return float(text[:-1]) * UNITS[text[-1]]


def corpus(name: str) -> list[bytes]:
    found = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    assert len(found) > 2
    return found


@st.composite
def damaged(draw: st.DrawFn, good: list[bytes]) -> bytes:
    data = bytearray(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == 1:
            at -= at % 4  # where lengths and offsets are
            size = draw(st.sampled_from([1, 2, 4, 8]))
            data[at : at + size] = draw(st.sampled_from(EDGES)).to_bytes(8, 'little')[:size]
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            data[at:at] = draw(st.binary(max_size=40))
        else:
            other = draw(st.integers(0, max(len(data) - 1, 0)))
            data[at : at + 8] = data[other : other + 8]
    return bytes(data)


def bounded(work: Callable[[], object], nbytes: int) -> None:
    tracemalloc.start()
    try:
        work()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < FLOOR + FACTOR * nbytes


def manifest(data: bytes) -> None:
    try:
        decode(data)
    except CorruptEntry:
        return


def reply(data: bytes) -> None:
    try:
        code, text = _reply(data, 'control')
    except StoreError:
        return
    assert isinstance(code, int)
    assert len(text) <= len(data)


def again_and_again(case: Callable[[], None], share: float) -> None:
    """Once, or for that share of FUZZTIME, each time with another seed."""
    end, n = time.monotonic() + seconds() * share, 0
    while n == 0 or time.monotonic() < end:
        seed(n)(case)()
        n += 1


@pytest.mark.parametrize('reader', [manifest, reply], ids=lambda reader: reader.__name__)
def test_any_bytes(reader: Callable[[bytes], None]) -> None:
    good = corpus(reader.__name__)
    for data in good:
        reader(data)

    @settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(damaged(good), st.binary(max_size=200)))
    def case(data: bytes) -> None:
        bounded(lambda: reader(data), len(data))

    again_and_again(case, 0.4)


def test_any_tables() -> None:
    """What is made of a damaged manifest lies in the memory that is there, or is refused."""
    weight = torch.arange(12.0).reshape(3, 4)
    tensors = [weight, weight[1:], weight.t(), torch.zeros(()), torch.ones(5, dtype=torch.bool), torch.ones(2).half()]
    written, structure, files = write(tensors)
    good = [encode(written)]

    @settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged(good))
    def case(data: bytes) -> None:
        try:
            found = decode(data)
        except CorruptEntry:
            return
        entry = OpenEntry(found, structure, [os.dup(fd) for fd in files[: len(found.arenas)]], 0)
        try:
            result = restore(entry, ARGS, {})
        except Exception:
            return
        finally:
            entry.close()
        arenas = sum(a.nbytes for a in found.arenas)
        for t in result:
            assert t.untyped_storage().nbytes() <= arenas
            assert t.numel() > 1 << 20 or len(t.reshape(-1).tolist()) == t.numel()

    again_and_again(case, 0.2)
    for fd in files:
        os.close(fd)
