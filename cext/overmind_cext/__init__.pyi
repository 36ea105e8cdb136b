from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex, TypeAlias

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

_Pieces: TypeAlias = Iterable[tuple[SupportsIndex, SupportsIndex, SupportsIndex]]

def map_arena(fd: int, nbytes: SupportsIndex, populate: bool = False, copy: bool = False, lease: int = -1) -> object:
    """A legacy "dltensor" capsule of nbytes uint8 on the CPU: a private, writable, 2 MiB-aligned mapping of fd. It keeps
    a duplicate of lease, or else of fd, open until the release."""

_Arenas: TypeAlias = tuple[tuple[int, int, int, int], ...]

def open_entry(
    root: str, folder: str, hold: bool, seconds: float, /
) -> tuple[tuple[int, int], int, str, object, int, _Arenas, bytes, int, bytes, int] | None:
    """The files of the entry in a folder below root, opened for reading in a thread of its own, which signals and a
    daemon that hangs do not reach; None where that takes longer, and what is opened later is closed at once.

    Device and time of the last change (ns) of the root; an errno, or 0, and the name in the folder that it is about,
    or '' for the folder; an object that keeps the descriptors open, and closes them when it is gone; that of the
    folder, or -1; descriptor, owner, size and inode of each arena, fewer than there are if there was an error or the
    manifest cannot be read; content and owner of manifest and structure.pkl.

    hold: note the use, and lock the folder (shared) for as long as it is open; else its descriptor is only good as a
    path. ENXIO: not a file; EFBIG: more than 1 GiB where that cannot be. RuntimeError where no thread can be had."""

_Tables: TypeAlias = tuple[bytes, bytes, bytes]

def check_tables(tables: _Tables, sizes: Sequence[int], dtypes: int, devices: int, /) -> None:
    """Raises ValueError for a row that leads to nothing.

    tables are those of a manifest as they lie in it: storages, tensors, and the sizes and strides of these. sizes are
    those of the arenas in bytes, dtypes and devices how many there are."""

def tensors(
    arenas: Sequence[object],
    tables: _Tables,
    dtypes: Sequence[tuple[int, int] | None],
    device: int,
    from_dlpack: Callable[[object], object],
    parameter: type,
    /,
) -> tuple[list[object | None], list[tuple[int, int]]]:
    """For each row of the tensors one over its part of an arena, if it is the first one that is all of its storage, or
    None; and for each of the latter (row, owner): the row of the tensor that has the storage, or -1.

    arenas are capsules of map_arena that nobody has consumed; a dtype is (code, bits) of DLPack, or None for what it
    does not have; device is the number of the CPU. Tensors are made by from_dlpack, of a capsule; a row says whether
    one gets the class parameter, and whether it requires gradients. Raises as check_tables does."""

def unpack(data: bytes, layout: str, factor: int, /) -> tuple[Any, ...]:
    """The fields of the root table of a FlatBuffer, whose bytes may be anything: ValueError for what leads outside.

    layout has a letter for each field, in the order of the schema: I, Q, q and d for a uint32, uint64, int64 and double
    (0 where it is not there), s for a string ('' where it is not there), S for one that must be there, * for a list of
    strings, [...] for a list of tables, as tuples, {n} for the bytes of a vector of structs of n bytes, - for a field
    that is left out. All strings together may be as long as factor times the data."""

def kinds(modules: Iterable[Any], /) -> tuple[set[bool], set[tuple[Any, Any, bool]]]:
    """The training modes of modules and of all below them, and (dtype, device, requires_grad) of their tensors."""

def module_filler(names: dict[str, object], kinds: dict[str, type], /) -> Callable[[object, dict[str, object]], None]:
    """A function of a module and attributes that sets all of its __dict__: a copy of names, a new object of its kind, a
    set or a dict, for each name of kinds, and the attributes over them."""

def write_arena(
    fd: int,
    nbytes: SupportsIndex,
    header: bytes,
    pieces: _Pieces,
    threads: int = 0,
    mapped: bool = True,
) -> None:
    """Write header at 0 and each piece (offset, address, nbytes) of memory at its offset, with the GIL released."""

def start_copier(socket: int, plans: Iterable[tuple[SupportsIndex, bytes, _Pieces]], /) -> int:
    """Fork a process that copies from the memory of this one as it is now, told over the other end of socket; a pidfd.
    A plan is (nbytes, header, pieces), as for write_arena."""

def agreement(fd: int, nbytes: SupportsIndex, header: bytes, pieces: _Pieces, /) -> int:
    """How many bytes of a file agree, from its start, with what write_arena would write; padding counts as equal."""

def live_mappings() -> int:
    """How many mappings of this process are not released yet."""

def released_mappings() -> int:
    """How many mappings this process has released."""
