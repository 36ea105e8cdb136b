"""FlatBuffers to Manifest. The bytes may be anything: whatever does not hold together is a CorruptEntry.

Python's FlatBuffers reads with bounds-checked ``struct`` calls, so hostile offsets end in an exception or in wrong
values, never outside the buffer; the ranges are compared with the arenas here, before anything is mapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from overmind.errors import CorruptEntry
from overmind.key.inputs import Listing, Source
from overmind.manifest.generated import manifest_generated as fb
from overmind.manifest.model import FORMAT, STORAGE, TENSOR, Arena, Manifest, StorageRow, TensorRow

T = TypeVar('T')


def decode(data: bytes) -> Manifest:
    """The manifest in data, its tables consistent with each other. Raises :class:`CorruptEntry`."""
    try:
        if not fb.Manifest.ManifestBufferHasIdentifier(data, 0, False):
            raise CorruptEntry('the manifest does not start with OVMF')
        root = fb.Manifest.GetRootAs(data, 0)
        if root.Format() != FORMAT:
            raise CorruptEntry(f'the manifest has format {root.Format()}, this loader reads format {FORMAT}')
        m = _read(root, data)
    except CorruptEntry:
        raise
    except Exception as e:
        raise CorruptEntry(f'the manifest cannot be read: {type(e).__name__}: {e}') from e
    _check(m)
    return m


def _text(value: bytes | None) -> str:
    return '' if value is None else value.decode()


def _many(count: int, item: Callable[[int], Any], read: Callable[[Any], T], data: bytes) -> list[T]:
    if count > len(data) // 4:
        raise CorruptEntry(f'the manifest claims {count} items in {len(data)} bytes')
    return [read(item(i)) for i in range(count)]


def _structs(root: Any, slot: int, size: int, data: bytes) -> memoryview:
    """The bytes of the vector of structs in a vtable slot."""
    tab = root._tab
    at = tab.Offset(slot)
    if not at:
        return memoryview(b'')
    start, count = tab.Vector(at), tab.VectorLen(at)
    if start < 0 or start + count * size > len(data):
        raise CorruptEntry('a vector of the manifest reaches past its end')
    return memoryview(data)[start : start + count * size]


# vtable slots of the struct vectors, in the order of the fields in schema/manifest.fbs: 4 + 2 * position
_STORAGES, _TENSORS, _DIMS = 22, 26, 28


def _read(root: Any, data: bytes) -> Manifest:
    return Manifest(
        id=_text(root.Id()),
        class_name=_text(root.ClassName()),
        model_name=_text(root.ModelName()),
        loader=_text(root.Loader()),
        scope=_text(root.Scope()),
        created_ns=root.CreatedNs(),
        fill_seconds=root.FillSeconds(),
        arenas=_many(root.ArenasLength(), root.Arenas, lambda a: Arena(_text(a.Name()), a.Nbytes()), data),
        storages=[StorageRow(*r) for r in STORAGE.iter_unpack(_structs(root, _STORAGES, STORAGE.size, data))],
        storage_names=_many(root.StorageNamesLength(), root.StorageNames, _text, data),
        tensors=[TensorRow(*r) for r in TENSOR.iter_unpack(_structs(root, _TENSORS, TENSOR.size, data))],
        dims=_structs(root, _DIMS, 8, data).cast('q').tolist(),
        dtypes=_many(root.DtypesLength(), root.Dtypes, _text, data),
        devices=_many(root.DevicesLength(), root.Devices, _text, data),
        structure_nbytes=root.StructureNbytes(),
        key=_many(root.KeyLength(), root.Key, lambda f: (_text(f.Name()), _text(f.Value())), data),
        sources=_many(
            root.SourcesLength(),
            root.Sources,
            lambda s: Source(_text(s.Path()), s.Nbytes(), s.MtimeNs(), s.CtimeNs(), s.Inode()),
            data,
        ),
        listings=_many(
            root.ListingsLength(), root.Listings, lambda x: Listing(_text(x.Path()), _text(x.Digest())), data
        ),
        distributions=_many(
            root.DistributionsLength(), root.Distributions, lambda d: (_text(d.Name()), _text(d.Version())), data
        ),
        modules=_many(root.ModulesLength(), root.Modules, lambda x: (_text(x.Name()), _text(x.Path())), data),
    )


def _check(m: Manifest) -> None:
    """Every index and range inside the manifest; the extents of tensors are checked by torch when it sets them."""
    sizes = [a.nbytes for a in m.arenas]
    for i, s in enumerate(m.storages):
        if s.device >= len(m.devices):
            raise CorruptEntry(f'storage {i} is on device {s.device} of {len(m.devices)}')
        if s.nbytes and (s.arena >= len(sizes) or s.offset + s.nbytes > sizes[s.arena]):
            raise CorruptEntry(f'storage {i} reaches past the end of its arena')
    if m.storage_names and len(m.storage_names) != len(m.storages):
        raise CorruptEntry(f'{len(m.storage_names)} names for {len(m.storages)} storages')
    n_storages, n_dims, n_dtypes = len(m.storages), len(m.dims), len(m.dtypes)
    for i, t in enumerate(m.tensors):
        if t.storage >= n_storages or t.dtype >= n_dtypes or t.dims + 2 * t.ndim > n_dims:
            raise CorruptEntry(f'tensor {i} refers to something that the manifest does not have')
    for a in m.arenas:
        if '/' in a.name or a.name in ('', '.', '..') or '\0' in a.name:
            raise CorruptEntry(f'{a.name!r} is not the name of an arena')
