"""Manifest to FlatBuffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import flatbuffers

from overmind.manifest.generated import manifest_generated as fb
from overmind.manifest.model import FORMAT, STORAGE, TENSOR, Manifest

T = TypeVar('T')


def encode(m: Manifest) -> bytes:
    """The bytes of the file ``manifest``."""
    b = flatbuffers.Builder(4096)
    strings = {name: b.CreateString(getattr(m, name)) for name in ('id', 'class_name', 'model_name', 'loader', 'scope')}

    def table(cls: str, fields: Sequence[tuple[str, str | int]]) -> int:
        values = [(name, b.CreateString(v) if isinstance(v, str) else v) for name, v in fields]
        getattr(fb, f'{cls}Start')(b)
        for name, v in values:
            getattr(fb, f'{cls}Add{name}')(b, v)
        return int(getattr(fb, f'{cls}End')(b))

    def tables(items: Iterable[T], make: Callable[[T], int]) -> int:
        return _offsets(b, [make(i) for i in items])

    arenas = tables(m.arenas, lambda a: table('Arena', [('Name', a.name), ('Nbytes', a.nbytes)]))
    key = tables(m.key, lambda f: table('Fact', [('Name', f[0]), ('Value', f[1])]))
    sources = tables(
        m.sources,
        lambda s: table(
            'Source',
            [
                ('Path', s.path),
                ('Nbytes', s.nbytes),
                ('MtimeNs', s.mtime_ns),
                ('CtimeNs', s.ctime_ns),
                ('Inode', s.inode),
            ],
        ),
    )
    listings = tables(m.listings, lambda x: table('Listing', [('Path', x.path), ('Digest', x.digest)]))
    distributions = tables(m.distributions, lambda d: table('Distribution', [('Name', d[0]), ('Version', d[1])]))
    modules = tables(m.modules, lambda x: table('Module', [('Name', x[0]), ('Path', x[1])]))
    names, dtypes, devices = (_strings(b, x) for x in (m.storage_names, m.dtypes, m.devices))
    storages = _structs(b, fb.ManifestStartStoragesVector, [STORAGE.pack(*r) for r in m.storages])
    tensors = _structs(b, fb.ManifestStartTensorsVector, [TENSOR.pack(*r) for r in m.tensors])
    dims = _structs(b, fb.ManifestStartDimsVector, [d.to_bytes(8, 'little', signed=True) for d in m.dims])

    fb.ManifestStart(b)
    fb.ManifestAddFormat(b, FORMAT)
    fb.ManifestAddId(b, strings['id'])
    fb.ManifestAddClassName(b, strings['class_name'])
    fb.ManifestAddModelName(b, strings['model_name'])
    fb.ManifestAddLoader(b, strings['loader'])
    fb.ManifestAddScope(b, strings['scope'])
    fb.ManifestAddCreatedNs(b, m.created_ns)
    fb.ManifestAddFillSeconds(b, m.fill_seconds)
    fb.ManifestAddArenas(b, arenas)
    fb.ManifestAddStorages(b, storages)
    fb.ManifestAddStorageNames(b, names)
    fb.ManifestAddTensors(b, tensors)
    fb.ManifestAddDims(b, dims)
    fb.ManifestAddDtypes(b, dtypes)
    fb.ManifestAddDevices(b, devices)
    fb.ManifestAddStructureNbytes(b, m.structure_nbytes)
    fb.ManifestAddKey(b, key)
    fb.ManifestAddSources(b, sources)
    fb.ManifestAddListings(b, listings)
    fb.ManifestAddDistributions(b, distributions)
    fb.ManifestAddModules(b, modules)
    b.Finish(fb.ManifestEnd(b), file_identifier=b'OVMF')
    return bytes(b.Output())


def _offsets(b: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    b.StartVector(4, len(offsets), 4)
    for o in reversed(offsets):
        b.PrependUOffsetTRelative(o)
    return int(b.EndVector())


def _strings(b: flatbuffers.Builder, items: Sequence[str]) -> int:
    return _offsets(b, [b.CreateSharedString(s) for s in items])


def _structs(b: flatbuffers.Builder, start: Callable[[flatbuffers.Builder, int], int], rows: Sequence[bytes]) -> int:
    """A vector of structs from their packed bytes; the builder writes backwards."""
    data = b''.join(rows)
    start(b, len(rows))
    if data:
        b.head = b.head - len(data)
        b.Bytes[b.head : b.head + len(data)] = data
    return int(b.EndVector())
