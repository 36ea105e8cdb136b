"""Maps and fills the arenas of overmind-fs. Importing it changes nothing."""

from ._helper import (
    agreement,
    check_tables,
    kinds,
    live_mappings,
    map_arena,
    module_filler,
    open_entry,
    released_mappings,
    start_copier,
    tensors,
    unpack,
    write_arena,
)

__all__ = [
    "agreement",
    "check_tables",
    "kinds",
    "live_mappings",
    "map_arena",
    "module_filler",
    "open_entry",
    "released_mappings",
    "start_copier",
    "tensors",
    "unpack",
    "write_arena",
]
