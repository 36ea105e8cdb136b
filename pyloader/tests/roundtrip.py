"""One object through pickling, arenas and back, in this process and without a store."""

from __future__ import annotations

import os
from typing import Any

import overmind_cext

from overmind import arena
from overmind.entries import OpenEntry
from overmind.manifest import Arena, Manifest, decode
from overmind.manifest.encode import encode
from overmind.naming import name_tensors
from overmind.references import References, Registry
from overmind.restore import restore
from overmind.structure.pickler import dumps
from overmind.structure.table import Table

NO_ARGUMENTS = References(Registry(), {})


def write(obj: Any, references: References = NO_ARGUMENTS) -> tuple[Manifest, bytes, list[int]]:
    """The manifest, the structure and the arenas (memfds, to be closed by the caller) of one object."""
    table = Table()
    structure, modules = dumps(obj, table, references.targets())
    name_tensors(obj, table)
    regions, places, keep = table.place()
    groups: dict[str, list[int]] = {}
    for i, r in enumerate(regions):
        groups.setdefault(r.component or 'model', []).append(i)
    plans = [arena.plan(n, [regions[i] for i in g], g) for n, g in groups.items()]
    at = {region: (n, offset) for n, p in enumerate(plans) for region, offset in p.offsets.items()}
    manifest = Manifest(
        id='x',
        arenas=[Arena(p.name, p.nbytes) for p in plans],
        storages=table.storage_rows(places, at),
        tensors=table.rows,
        dims=table.dims,
        dtypes=table.dtypes,
        devices=table.devices,
        structure_nbytes=len(structure),
        modules=list(modules.items()),
    )
    files = []
    for p in plans:
        fd = os.memfd_create(p.name)
        os.ftruncate(fd, p.nbytes)
        overmind_cext.write_arena(fd, p.nbytes, p.header, p.pieces)
        files.append(fd)
    del keep
    return manifest, structure, files


def roundtrip(obj: Any, references: References = NO_ARGUMENTS) -> Any:
    """What a reader gets for obj."""
    manifest, structure, files = write(obj, references)
    entry = OpenEntry(decode(encode(manifest)), structure, files, os.geteuid())
    try:
        return restore(entry, references, {})
    finally:
        entry.close()
