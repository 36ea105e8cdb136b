"""The manifest's bytes: what is written comes back, and what is damaged is refused."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overmind.errors import CorruptEntry
from overmind.key.inputs import Listing, Source
from overmind.manifest import Arena, Manifest, StorageRow, TensorRow, decode
from overmind.manifest.encode import encode

TEXT = st.text(max_size=20).filter(lambda s: '\0' not in s and s.isprintable())


def example() -> Manifest:
    return Manifest(
        id='AutoModel-m-0123456789ab',
        class_name='a.B',
        model_name='m',
        loader='a:f',
        scope='a:f|/m',
        created_ns=1_700_000_000_000_000_000,
        fill_seconds=1.5,
        arenas=[Arena('unet.safetensors', 8192), Arena('vae.safetensors', 5000)],
        storages=[StorageRow(4096, 64, 0, 0), StorageRow(0, 0, 0, 0), StorageRow(4096, 904, 1, 0)],
        storage_names=['a.weight', '', 'ü'],
        tensors=[TensorRow(0, 0, 0, 0, 2, 3), TensorRow(4, 4, 2, 1, 0, 0)],
        dims=[4, 4, 4, 1],
        dtypes=['float32', 'bfloat16'],
        devices=['cpu'],
        structure_nbytes=10,
        key=[('loader', 'a:f')],
        sources=[Source('/m/a', 5, -1, 2**62, 7)],
        listings=[Listing('/m', 'abc')],
        distributions=[('torch', '2.15.0'), ('xformers', '')],
        modules=[('x.y', '/x/y.py')],
    )


def test_everything_comes_back() -> None:
    # The names of the storages are for the daemon.
    assert decode(encode(example())) == dataclasses.replace(example(), storage_names=[])
    assert decode(encode(Manifest(id='x'))) == Manifest(id='x')


@given(st.lists(st.tuples(TEXT, TEXT), max_size=20), st.lists(st.integers(0, 2**63 - 1), max_size=50), TEXT)
def test_any_facts_and_dims_come_back(facts: list[tuple[str, str]], dims: list[int], name: str) -> None:
    m = Manifest(id=name, key=facts, dims=dims)
    assert decode(encode(m)) == m


@pytest.mark.parametrize(
    'change',
    [
        lambda m: m.storages.__setitem__(0, StorageRow(8190, 64, 0, 0)),
        lambda m: m.storages.__setitem__(0, StorageRow(2**64 - 8, 64, 0, 0)),
        lambda m: m.storages.__setitem__(0, StorageRow(0, 8, 2, 0)),
        lambda m: m.storages.__setitem__(0, StorageRow(0, 8, 0, 1)),
        lambda m: m.tensors.__setitem__(0, TensorRow(0, 0, 3, 0, 1, 0)),
        lambda m: m.tensors.__setitem__(0, TensorRow(0, 3, 0, 0, 1, 0)),
        lambda m: m.tensors.__setitem__(0, TensorRow(0, 0, 0, 2, 1, 0)),
        lambda m: m.arenas.__setitem__(0, Arena('../x.safetensors', 8192)),
    ],
)
def test_ranges_outside_of_what_is_there_are_refused(change: object) -> None:
    m = example()
    change(m)  # type: ignore[operator]
    with pytest.raises(CorruptEntry):
        decode(encode(m))


@pytest.mark.parametrize('data', [b'', b'OVMF', b'\0' * 4, b'\0' * 100, b'\xff' * 100, b'\0\0\0\0OVMF'])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptEntry):
        decode(data)


def test_another_format_is_named() -> None:
    data = bytearray(encode(example()))
    root = int.from_bytes(data[:4], 'little')
    vtable = root - int.from_bytes(data[root : root + 4], 'little', signed=True)
    at = root + int.from_bytes(data[vtable + 4 : vtable + 6], 'little')
    data[at] = 9
    with pytest.raises(CorruptEntry, match='format 9'):
        decode(bytes(data))


def test_truncated_anywhere_is_refused_or_reads_nothing_outside() -> None:
    data = encode(example())
    for n in range(0, len(data), 7):
        try:
            shorter = decode(data[:n])
        except CorruptEntry:
            continue
        # The id is at the very end, and a store compares it with the folder's name.
        assert shorter.id != example().id or shorter == decode(data), f'{n} of {len(data)} bytes were accepted'


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_flipped_bytes_never_escape(seed: int) -> None:
    data = bytearray(encode(example()))
    r = random.Random(seed)
    for _ in range(r.randint(1, 8)):
        data[r.randrange(len(data))] = r.randrange(256)
    try:
        m = decode(bytes(data))
    except CorruptEntry:
        return
    for offset, nbytes, arena, _ in m.storages:
        assert not nbytes or offset + nbytes <= m.arenas[arena].nbytes
