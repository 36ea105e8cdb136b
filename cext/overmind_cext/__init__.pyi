from collections.abc import Iterable
from typing import SupportsIndex

__all__ = ["live_mappings", "map_arena", "released_mappings", "write_arena"]

def map_arena(
    fd: int, nbytes: SupportsIndex, populate: bool = False, copy: bool = False, lease: int = -1
) -> object:
    """A legacy "dltensor" capsule of nbytes uint8 on the CPU: a private, writable, 2 MiB-aligned mapping of fd. It keeps
    a duplicate of lease, or else of fd, open until the release."""

def write_arena(
    fd: int,
    nbytes: SupportsIndex,
    header: bytes,
    pieces: Iterable[tuple[SupportsIndex, SupportsIndex, SupportsIndex]],
    threads: int = 0,
    mapped: bool = True,
) -> None:
    """Write header at 0 and each piece (offset, address, nbytes) of memory at its offset, with the GIL released."""

def live_mappings() -> int:
    """How many mappings of this process are not released yet."""

def released_mappings() -> int:
    """How many mappings this process has released."""
