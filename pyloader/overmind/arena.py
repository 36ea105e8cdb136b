"""How storages are laid out in arenas: files that are valid safetensors and keep every address modulo 64.

Some CPU kernels give other last bits when the same weights start at another address modulo a vector's width, so a
storage keeps its residue. The format allows neither holes nor overlaps: storages are ordered by residue, and a padding
entry stands where the next residue differs.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ALIGN = 64
# The data start at a page, so that offsets within the data keep their residues in the file and in memory.
PAGE = 4096

# torch dtype name -> safetensors dtype and bytes per element
FORMAT_DTYPES = {
    'bool': ('BOOL', 1),
    'uint8': ('U8', 1),
    'int8': ('I8', 1),
    'int16': ('I16', 2),
    'uint16': ('U16', 2),
    'float16': ('F16', 2),
    'bfloat16': ('BF16', 2),
    'int32': ('I32', 4),
    'uint32': ('U32', 4),
    'float32': ('F32', 4),
    'float64': ('F64', 8),
    'int64': ('I64', 8),
    'uint64': ('U64', 8),
    'float8_e4m3fn': ('F8_E4M3', 1),
    'float8_e5m2': ('F8_E5M2', 1),
}


@dataclass(slots=True)
class Region:
    """A run of memory that goes into an arena once; nbytes > 0. Storages are windows of regions.

    name, dtype and shape are set where the region is exactly one contiguous tensor of a dtype that the format knows.
    """

    address: int
    nbytes: int
    component: str
    order: int = 0  # of its first storage in the structure: unlike the address, the same in every process
    name: str = ''
    dtype: str = ''
    shape: tuple[int, ...] = ()
    aliases: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """One arena: header and pieces, ready for the helper's write_arena."""

    name: str
    nbytes: int
    header: bytes
    pieces: list[tuple[int, int, int]]
    offsets: dict[int, int]  # region index -> bytes from the start of the file


# An arena has its memory from its beginning on. Where a fill lets go of what it copies, a large component has several,
# and what is given up goes into the next one. At most so many of an entry are parts; a staging may have 128 arenas.
SHARD = 512 << 20
_PARTS = 48


def shards(
    groups: Mapping[str, Sequence[int]], regions: Sequence[Region], whole: bool = False
) -> Iterator[tuple[str, list[int]]]:
    """Names and regions of the arenas for groups of regions, in the same order in every process; with whole, one for
    each group, which a reader opens in less time.

    A name without a suffix, or as saved checkpoints have it, ``unet-00001-of-00004``.
    """
    total = sum(r.nbytes for r in regions)
    limit = total if whole else max(SHARD, -(-total // _PARTS))
    for name, members in groups.items():
        parts: list[list[int]] = []
        left = 0
        for i in sorted(members, key=lambda i: regions[i].order):
            if not parts or regions[i].nbytes > left:
                parts.append([])
                left = limit
            parts[-1].append(i)
            left -= regions[i].nbytes
        for number, part in enumerate(parts, 1):
            yield name if len(parts) == 1 else f'{name}-{number:05}-of-{len(parts):05}', part


def plan(name: str, regions: list[Region], indices: list[int]) -> Plan:
    """Lay the regions out in the file ``<name>.safetensors``; indices are their numbers among all regions.

    Equal regions at equal residues give equal bytes, whatever else the entry holds: such arenas are stored once.
    """
    order = sorted(
        range(len(regions)), key=lambda i: (regions[i].address % ALIGN, -regions[i].nbytes, regions[i].order)
    )
    entries: dict[str, Any] = {}
    taken: set[str] = set()
    at, pads, places = 0, 0, []
    for i in order:
        r = regions[i]
        gap = (r.address - at) % ALIGN
        if gap:
            entries[f'__pad__.{pads}'] = {'dtype': 'U8', 'shape': [gap], 'data_offsets': [at, at + gap]}
            pads, at = pads + 1, at + gap
        places.append((i, at))
        key = r.name
        if not key or key in taken or key == '__metadata__' or key.startswith('__pad__.'):
            numbered = (f'storage.{n}' for n in itertools.count(len(places) - 1))
            key = next(k for k in numbered if k not in taken)
            entries[key] = {'dtype': 'U8', 'shape': [r.nbytes]}
        else:
            entries[key] = {'dtype': FORMAT_DTYPES[r.dtype][0], 'shape': list(r.shape)}
        taken.add(key)
        entries[key]['data_offsets'] = [at, at + r.nbytes]
        r.name = key
        at += r.nbytes
    ordered = [regions[i] for i in order]
    aliases = {a: r.name for r in ordered for a in r.aliases if a != r.name}
    metadata = {'format': 'pt', 'overmind.aliases': json.dumps(aliases)}
    text = json.dumps({'__metadata__': metadata, **entries}, separators=(',', ':')).encode()
    start = -(-(8 + len(text)) // PAGE) * PAGE
    header = (start - 8).to_bytes(8, 'little') + text.ljust(start - 8)
    return Plan(
        name=f'{name}.safetensors',
        nbytes=start + at,
        header=header,
        pieces=[(start + o, regions[i].address, regions[i].nbytes) for i, o in places],
        offsets={indices[i]: start + o for i, o in places},
    )
