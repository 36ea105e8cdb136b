"""FlatBuffers to Manifest. The bytes may be anything: whatever does not hold together is a CorruptEntry.

Hostile offsets end in an exception or in wrong values, never outside the buffer; the ranges are compared with the
arenas here, before anything is mapped. Both is the helper's work: in Python it took a good part of a hit.
"""

from __future__ import annotations

import overmind_cext

from overmind.errors import CorruptEntry
from overmind.key.inputs import Listing, Source
from overmind.manifest.model import FORMAT, STORAGE, TENSOR, Arena, Manifest, Packed

# The fields of schema/manifest.fbs in their order.
_LAYOUT = 'ISssssqd[SQ]{24}-{24}{8}**Q[SS][SQqqQ][SS][SS][SS]'

# As the daemon's decoder has them.
MAX_BYTES, MAX_STORAGES, STRINGS_FACTOR = 64 << 20, 1 << 20, 16


def decode(data: bytes) -> Manifest:
    """The manifest in data, its tables consistent with each other. Raises :class:`CorruptEntry`.

    Without ``storage_names``, which are for the daemon.
    """
    if len(data) > MAX_BYTES:
        raise CorruptEntry(f'the manifest has {len(data)} bytes, more than {MAX_BYTES}')
    if data[4:8] != b'OVMF':
        raise CorruptEntry('the manifest does not start with OVMF')
    try:
        (found,) = overmind_cext.unpack(data, _LAYOUT[0], STRINGS_FACTOR)
        if found != FORMAT:
            raise CorruptEntry(f'the manifest has format {found}, this loader reads format {FORMAT}')
        m = _manifest(*overmind_cext.unpack(data, _LAYOUT, STRINGS_FACTOR))
    except ValueError as e:
        raise CorruptEntry(f'the manifest cannot be read: {e}') from e
    for a in m.arenas:
        if '/' in a.name or a.name in ('', '.', '..') or '\0' in a.name:
            raise CorruptEntry(f'{a.name!r} is not the name of an arena')
    return m


def _manifest(
    _: int,
    id: str,
    class_name: str,
    model_name: str,
    loader: str,
    scope: str,
    created_ns: int,
    fill_seconds: float,
    arenas: list[tuple[str, int]],
    storages: bytes,
    tensors: bytes,
    dims: bytes,
    dtypes: list[str],
    devices: list[str],
    structure_nbytes: int,
    key: list[tuple[str, str]],
    sources: list[tuple[str, int, int, int, int]],
    listings: list[tuple[str, str]],
    distributions: list[tuple[str, str]],
    modules: list[tuple[str, str]],
) -> Manifest:
    if len(storages) > MAX_STORAGES * STORAGE.size:
        raise ValueError(f'it has {len(storages) // STORAGE.size} storages, more than {MAX_STORAGES}')
    tables = storages, tensors, dims
    overmind_cext.check_tables(tables, [nbytes for _, nbytes in arenas], len(dtypes), len(devices))
    return Manifest(
        id,
        class_name,
        model_name,
        loader,
        scope,
        created_ns,
        fill_seconds,
        arenas=[Arena(*one) for one in arenas],
        storages=Packed(storages, STORAGE),
        tensors=Packed(tensors, TENSOR),
        dims=memoryview(dims).cast('q').tolist(),
        dtypes=dtypes,
        devices=devices,
        structure_nbytes=structure_nbytes,
        key=key,
        sources=[Source(*one) for one in sources],
        listings=[Listing(*one) for one in listings],
        distributions=distributions,
        modules=modules,
        packed=tables,
    )
