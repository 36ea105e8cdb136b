from collections.abc import Iterable
from typing import SupportsIndex, TypeAlias

__all__ = ["agreement", "live_mappings", "map_arena", "released_mappings", "start_copier", "write_arena"]

_Pieces: TypeAlias = Iterable[tuple[SupportsIndex, SupportsIndex, SupportsIndex]]

def map_arena(fd: int, nbytes: SupportsIndex, populate: bool = False, copy: bool = False, lease: int = -1) -> object:
    """A legacy "dltensor" capsule of nbytes uint8 on the CPU: a private, writable, 2 MiB-aligned mapping of fd. It keeps
    a duplicate of lease, or else of fd, open until the release."""

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
