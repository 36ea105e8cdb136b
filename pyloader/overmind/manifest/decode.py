"""FlatBuffers to Manifest. The bytes may be anything: whatever does not hold together is a CorruptEntry.

Hostile offsets end in an exception or in wrong values, never outside the buffer (see vectors.py); the ranges are
compared with the arenas here, before anything is mapped.
"""

from __future__ import annotations

import overmind_cext

from overmind.errors import CorruptEntry
from overmind.key.inputs import Listing, Source
from overmind.manifest.model import FORMAT, STORAGE, TENSOR, Arena, Manifest, Packed
from overmind.manifest.vectors import I64, U32, U64, Table

# Slots of the vtables, in the order of the fields in schema/manifest.fbs: 4 + 2 * position
_FORMAT, _ID, _CLASS_NAME, _MODEL_NAME, _LOADER, _SCOPE, _CREATED_NS, _FILL_SECONDS = range(4, 20, 2)
_ARENAS, _STORAGES = 20, 22
_TENSORS, _DIMS, _DTYPES, _DEVICES, _STRUCTURE, _KEY, _SOURCES, _LISTINGS, _DISTRIBUTIONS, _MODULES = range(26, 46, 2)


# As the daemon's decoder has them.
MAX_BYTES, MAX_STORAGES = 64 << 20, 1 << 20


def decode(data: bytes) -> Manifest:
    """The manifest in data, its tables consistent with each other. Raises :class:`CorruptEntry`.

    Without ``storage_names``, which are for the daemon.
    """
    if len(data) > MAX_BYTES:
        raise CorruptEntry(f'the manifest has {len(data)} bytes, more than {MAX_BYTES}')
    try:
        if data[4:8] != b'OVMF':
            raise CorruptEntry('the manifest does not start with OVMF')
        root = Table(data, U32.unpack_from(data)[0])
        found = root.number(_FORMAT, U32)
        if found != FORMAT:
            raise CorruptEntry(f'the manifest has format {found}, this loader reads format {FORMAT}')
        m = _read(root)
    except CorruptEntry:
        raise
    except Exception as e:
        raise CorruptEntry(f'the manifest cannot be read: {type(e).__name__}: {e}') from e
    _check(m)
    return m


def _read(root: Table) -> Manifest:
    storages = bytes(root.structs(_STORAGES, STORAGE.size, MAX_STORAGES))
    tensors = bytes(root.structs(_TENSORS, TENSOR.size))
    dims = root.structs(_DIMS, 8)
    return Manifest(
        id=root.text(_ID),
        class_name=root.text(_CLASS_NAME),
        model_name=root.text(_MODEL_NAME),
        loader=root.text(_LOADER),
        scope=root.text(_SCOPE),
        created_ns=root.number(_CREATED_NS, I64),
        fill_seconds=root.real(_FILL_SECONDS),
        arenas=[Arena(t.required(4), t.number(6, U64)) for t in root.tables(_ARENAS)],
        storages=Packed(storages, STORAGE),
        tensors=Packed(tensors, TENSOR),
        dims=dims.cast('q').tolist(),
        dtypes=root.strings(_DTYPES),
        devices=root.strings(_DEVICES),
        structure_nbytes=root.number(_STRUCTURE, U64),
        key=root.pairs(_KEY),
        sources=[_source(t) for t in root.tables(_SOURCES)],
        listings=[Listing(*pair) for pair in root.pairs(_LISTINGS)],
        distributions=root.pairs(_DISTRIBUTIONS),
        modules=root.pairs(_MODULES),
        packed=(storages, tensors, bytes(dims)),
    )


def _source(t: Table) -> Source:
    return Source(t.required(4), t.number(6, U64), t.number(8, I64), t.number(10, I64), t.number(12, U64))


def _check(m: Manifest) -> None:
    """Every index and range inside the manifest; the extents of tensors are checked by torch when it sets them."""
    assert m.packed is not None
    try:
        overmind_cext.check_tables(m.packed, [a.nbytes for a in m.arenas], len(m.dtypes), len(m.devices))
    except ValueError as e:
        raise CorruptEntry(f'the tables of the manifest: {e}') from e
    for a in m.arenas:
        if '/' in a.name or a.name in ('', '.', '..') or '\0' in a.name:
            raise CorruptEntry(f'{a.name!r} is not the name of an arena')
