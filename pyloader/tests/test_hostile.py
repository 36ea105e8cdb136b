"""Entries that somebody has made to do harm, in a plain directory: refused at once, and the load succeeds without."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pickle
import struct
import time
import tracemalloc
from collections.abc import Callable

import pytest
import torch

from overmind.api import load, stats
from overmind.errors import CorruptEntry
from overmind.manifest import Arena, Manifest, decode
from overmind.manifest.decode import STRINGS_FACTOR
from overmind.manifest.encode import encode
from overmind.manifest.model import StorageRow, TensorRow

QUICK = 60.0  # seconds; it takes less than two, unless something is squared


@pytest.fixture
def entry(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder of an entry of ``checkpoint``, which the next load would hit."""
    root = tmp_path / 'root'
    root.mkdir()
    monkeypatch.setenv('OVERMIND_ROOT', str(root))
    checkpoint = tmp_path / 'x.pt'
    torch.save({'weight': torch.arange(8.0).reshape(2, 4)}, checkpoint)
    load(torch.load, str(checkpoint))
    monkeypatch.delenv('OVERMIND_STRICT', raising=False)
    monkeypatch.setenv('OVERMIND_DEADLINE', '60')  # a slow machine is not taken for a daemon that hangs
    (found,) = (root / 'pipelines').iterdir()
    return found


def reload(entry: pathlib.Path) -> tuple[int, float]:
    """How many hits the next load is, and how long it takes; its result is right whatever the entry is."""
    before, start = stats(), time.monotonic()
    value = load(torch.load, str(entry.parent.parent.parent / 'x.pt'))
    took = time.monotonic() - start
    assert torch.equal(value['weight'], torch.arange(8.0).reshape(2, 4))
    return stats().hits - before.hits, took


def forge(entry: pathlib.Path, change: Callable[[Manifest], object]) -> None:
    path = entry / 'manifest'
    manifest = decode(path.read_bytes())
    manifest.storage_names = [''] * len(manifest.storages)
    manifest.storages = [StorageRow(*row) for row in manifest.storages]
    manifest.tensors = [TensorRow(*row) for row in manifest.tensors]
    change(manifest)
    write(path, encode(manifest))


def write(path: pathlib.Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def tensor(**changes: int) -> Callable[[Manifest], object]:
    def change(m: Manifest) -> None:
        m.tensors[0] = m.tensors[0]._replace(**changes)

    return change


def storage(**changes: int) -> Callable[[Manifest], object]:
    def change(m: Manifest) -> None:
        m.storages[0] = m.storages[0]._replace(**changes)

    return change


def shape(*dims: int) -> Callable[[Manifest], object]:
    """All of the dims of the first tensor: sizes, then strides."""

    def change(m: Manifest) -> None:
        m.tensors[0] = m.tensors[0]._replace(dims=len(m.dims), ndim=len(dims) // 2)
        m.dims.extend(dims)

    return change


def two_million(m: Manifest) -> None:
    m.storages = [StorageRow(0, 0, 0, 0)] * 2_000_000


FORGERIES: dict[str, Callable[[Manifest], object]] = {
    'storage beyond the arena': storage(offset=1 << 40),
    'offset and size overflow': storage(offset=2**64 - 8, nbytes=64),
    'storage of 16 EiB': storage(nbytes=2**64 - 1),
    'no such arena': storage(arena=7),
    'no such device': storage(device=7),
    'no such storage': tensor(storage=7),
    'no such dims': tensor(dims=2**32 - 1),
    'no such dtype': tensor(dtype=65535),
    'offset beyond the storage': tensor(offset=1 << 40),
    'offset of 2**64 - 1': tensor(offset=2**64 - 1),
    'shape and stride overflow': shape(2**32 + 1, 2**32),
    'product of the shape overflows': shape(2**62, 2**62, 2**62, 2**62),
    'product of a shape that takes no room overflows': shape(8, 2**40, 2**40, 1, 0, 0),
    'extent overflows': shape(3, 2**63 - 1),
    'negative size': shape(-1, 1),
    'negative stride': shape(2, -1),
    'too large by one': shape(9, 1),
    'a storage without bytes': storage(nbytes=0),
    'two million storages': two_million,
    'an arena of another size': lambda m: m.arenas.__setitem__(0, Arena(m.arenas[0].name, 1 << 40)),
    'an arena elsewhere': lambda m: m.arenas.__setitem__(0, Arena('../../../x.pt', m.arenas[0].nbytes)),
    'a pickle of another size': lambda m: setattr(m, 'structure_nbytes', 1 << 40),
    'another id': lambda m: setattr(m, 'id', 'other'),
    'no such dtype in torch': lambda m: setattr(m, 'dtypes', ['load']),
}


def test_what_is_changed_back_is_a_hit(entry: pathlib.Path) -> None:
    forge(entry, lambda m: None)
    assert reload(entry)[0] == 1


@pytest.mark.parametrize('name', FORGERIES)
def test_forged_manifest(entry: pathlib.Path, name: str) -> None:
    forge(entry, FORGERIES[name])
    hits, took = reload(entry)
    assert hits == 0
    assert took < QUICK
    assert reload(entry)[0] == 1  # replaced


def nested() -> bytes:
    """Opcodes of 10,000 lists in one another, held by a dict key, so that they have to be hashed and compared."""
    return pickle.PROTO + b'\x04' + b'(' * 10_000 + b't' * 10_000 + b'.'


def cyclic() -> bytes:
    loop: list[object] = []
    loop.append(loop)
    return pickle.dumps(loop)


STRUCTURES = {
    'nested 10,000 deep': nested(),
    'cyclic': cyclic(),
    'a string of 4 GiB': pickle.PROTO + b'\x04' + pickle.BINUNICODE8 + struct.pack('<Q', 4 << 30) + b'x.',
    'a frame of 16 EiB': pickle.PROTO + b'\x04' + pickle.FRAME + struct.pack('<Q', 2**64 - 1) + b'.',
    'a memo of 4 Gi': pickle.PROTO + b'\x04N' + pickle.LONG_BINPUT + struct.pack('<I', 2**32 - 1) + b'.',
    'no pickle': b'\xff' * 100,
    'empty': b'',
}


@pytest.mark.parametrize('name', STRUCTURES)
def test_damaged_structure(entry: pathlib.Path, name: str) -> None:
    """Of one's own: whoever can write here can run code anyway, but damage must not end the program."""
    write(entry / 'structure.pkl', STRUCTURES[name])
    forge(entry, lambda m: setattr(m, 'structure_nbytes', len(STRUCTURES[name])))
    if name in ('cyclic', 'nested 10,000 deep'):
        value = load(torch.load, str(entry.parent.parent.parent / 'x.pt'))
        assert type(value) in (list, tuple)  # what it says: a list
        return
    hits, took = reload(entry)
    assert hits == 0
    assert took < QUICK


@pytest.mark.skipif(os.geteuid() != 0, reason='only root gives files away')
@pytest.mark.parametrize('name', ['structure.pkl', 'manifest', 'tensors/model.safetensors'])
def test_a_file_of_another_user(entry: pathlib.Path, name: str) -> None:
    os.chown(entry / name, 4242, 4242)
    assert reload(entry)[0] == 0


def bomb(count: int, nbytes: int) -> bytes:
    """A manifest with so many offsets to one string of nbytes in the place of its devices."""
    import flatbuffers

    from overmind.manifest.generated import manifest_generated as generated

    b = flatbuffers.Builder(0)
    identifier, long = b.CreateString('bomb'), b.CreateString('x' * nbytes)
    generated.ManifestStartDevicesVector(b, count)
    for _ in range(count):
        b.PrependUOffsetTRelative(long)
    devices = b.EndVector()
    generated.ManifestStart(b)
    generated.ManifestAddFormat(b, 1)
    generated.ManifestAddId(b, identifier)
    generated.ManifestAddDevices(b, devices)
    b.Finish(generated.ManifestEnd(b), b'OVMF')
    return bytes(b.Output())


def test_one_long_string_many_times() -> None:
    data = bomb(10_000, 1 << 20)  # would be 10 GB
    tracemalloc.start()
    try:
        with pytest.raises(CorruptEntry, match='strings are together too long'):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * STRINGS_FACTOR * len(data)
    finally:
        tracemalloc.stop()


def test_lengths_of_4_gib() -> None:
    """Every aligned place of a manifest, read as a length, an offset or a count."""
    m = Manifest('a', devices=['cpu'], dtypes=['uint8'], arenas=[Arena('model.safetensors', 64)])
    m.storages, m.storage_names = [StorageRow(0, 64, 0, 0)], ['x']
    m.tensors, m.dims = [TensorRow(0, 0, 0, 0, 1, 0)], [64, 1]
    good = encode(m)
    assert dataclasses.replace(decode(good), storage_names=['x']) == m
    for at in range(0, len(good) - 3, 4):
        for value in (2**32 - 1, 2**32 - 4, 2**31, 2**31 - 1, 0, 4):
            bad = good[:at] + struct.pack('<I', value) + good[at + 4 :]
            try:
                decode(bad)
            except CorruptEntry:
                continue
