"""Takes something away from this process."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path
from typing import Any

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_SLAVE = 0x4000, 0x80000


def files(number: str) -> dict[str, Any]:
    """``ulimit -n``; with ``used`` none can be opened any more."""
    if number == 'used':
        lowest = os.dup(0)
        os.close(lowest)
        limit = lowest
    else:
        limit = int(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    return {}


def address_space(more: str) -> dict[str, Any]:
    """``ulimit -v``: so many bytes more than now."""
    used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(more), resource.RLIM_INFINITY))
    return {}


def file_size(limit: str) -> dict[str, Any]:
    """``ulimit -f``, in bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    return {}


def shared_memory(size: str) -> dict[str, Any]:
    """A /dev/shm of that size, in a mount namespace of this process's own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        return {'refused': os.strerror(ctypes.get_errno())}
    for source, flags, options in ((b'/', _MS_REC | _MS_SLAVE, None), (b'tmpfs', 0, f'size={size}'.encode())):
        target = b'/' if options is None else b'/dev/shm'
        if libc.mount(source, target, b'tmpfs' if options else None, ctypes.c_ulong(flags), options):
            return {'refused': os.strerror(ctypes.get_errno())}
    return {}


LIMITS = {
    'limit_files': files,
    'limit_file_size': file_size,
    'limit_address_space': address_space,
    'limit_shared_memory': shared_memory,
}
