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
from overmind.manifest.vectors import pairs, strings, structs

T = TypeVar('T')


def decode(data: bytes) -> Manifest:
    """The manifest in data, its tables consistent with each other. Raises :class:`CorruptEntry`.

    Without ``storage_names``, which are for the daemon.
    """
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


# Slots of the vtable, in the order of the fields in schema/manifest.fbs: 4 + 2 * position
_STORAGES, _TENSORS, _DIMS, _DTYPES, _DEVICES = 22, 26, 28, 30, 32
_KEY, _LISTINGS, _DISTRIBUTIONS, _MODULES = 36, 40, 42, 44


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
        storages=list(map(StorageRow._make, STORAGE.iter_unpack(structs(root, _STORAGES, STORAGE.size, data)))),
        tensors=list(map(TensorRow._make, TENSOR.iter_unpack(structs(root, _TENSORS, TENSOR.size, data)))),
        dims=structs(root, _DIMS, 8, data).cast('q').tolist(),
        dtypes=strings(root, _DTYPES, data),
        devices=strings(root, _DEVICES, data),
        structure_nbytes=root.StructureNbytes(),
        key=pairs(root, _KEY, data),
        sources=_many(
            root.SourcesLength(),
            root.Sources,
            lambda s: Source(_text(s.Path()), s.Nbytes(), s.MtimeNs(), s.CtimeNs(), s.Inode()),
            data,
        ),
        listings=[Listing(*pair) for pair in pairs(root, _LISTINGS, data)],
        distributions=pairs(root, _DISTRIBUTIONS, data),
        modules=pairs(root, _MODULES, data),
    )


def _check(m: Manifest) -> None:
    """Every index and range inside the manifest; the extents of tensors are checked by torch when it sets them."""
    sizes = [a.nbytes for a in m.arenas]
    n_arenas, n_devices = len(sizes), len(m.devices)
    for i, (offset, nbytes, arena, device) in enumerate(m.storages):
        if device >= n_devices:
            raise CorruptEntry(f'storage {i} is on device {device} of {n_devices}')
        if nbytes and (arena >= n_arenas or offset + nbytes > sizes[arena]):
            raise CorruptEntry(f'storage {i} reaches past the end of its arena')
    n_storages, n_dims, n_dtypes = len(m.storages), len(m.dims), len(m.dtypes)
    for i, (_, dims, storage, dtype, ndim, _, _) in enumerate(m.tensors):
        if storage >= n_storages or dtype >= n_dtypes or dims + 2 * ndim > n_dims:
            raise CorruptEntry(f'tensor {i} refers to something that the manifest does not have')
    for a in m.arenas:
        if '/' in a.name or a.name in ('', '.', '..') or '\0' in a.name:
            raise CorruptEntry(f'{a.name!r} is not the name of an arena')
