"""The command line and the environment that the system shows of a process (``ps``, ``/proc/<pid>/cmdline``)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_KEEP_EXECUTABLE = 0xFFFFFFFF
_NUMBERS = ('start_code', 'end_code', 'start_data', 'end_data', 'start_brk', 'brk', 'start_stack')
_TEXTS = ('arg_start', 'arg_end', 'env_start', 'env_end')
# Where proc(5) has them in /proc/self/stat, counted from the state, which is its third field.
_STAT = {'start_code': 23, 'end_code': 24, 'start_data': 42, 'end_data': 43, 'start_brk': 44, 'start_stack': 25}


class _Map(ctypes.Structure):
    """struct prctl_mm_map"""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in (*_NUMBERS, *_TEXTS, 'auxv')),
        ('auxv_size', ctypes.c_uint32),
        ('exe_fd', ctypes.c_uint32),
    )


def show(words: Iterable[str], environment: Iterable[tuple[str, str]]) -> None:
    """Have the system show these. Nothing happens on a kernel without CONFIG_CHECKPOINT_RESTORE."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_ssize_t]
    with open('/proc/self/stat', 'rb') as file:
        fields = file.read().rpartition(b')')[2].split()
    shown = _Map(exe_fd=_KEEP_EXECUTABLE, brk=libc.sbrk(0), **{name: int(fields[at]) for name, at in _STAT.items()})
    shown.arg_start, shown.arg_end = _kept(libc, words)
    shown.env_start, shown.env_end = _kept(libc, (f'{name}={value}' for name, value in environment))
    libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(shown), ctypes.c_ulong(ctypes.sizeof(shown)), ctypes.c_ulong(0))


def _kept(libc: ctypes.CDLL, words: Iterable[str]) -> tuple[int, int]:
    """The addresses of a copy that stays to the end of the process."""
    text = b''.join(os.fsencode(word) + b'\0' for word in words)
    at: int = libc.malloc(len(text) + 1)
    ctypes.memmove(at, text, len(text))
    return at, at + len(text)
