"""Makes the standard streams what they are in a new interpreter. The objects stay: libraries may hold them already."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


def reopen(streams: tuple[Any, Any, Any]) -> None:
    """For new files behind 0, 1 and 2. ``streams`` are the interpreter's first stdin, stdout and stderr."""
    unbuffered = streams[1].write_through
    for fd, (name, stream) in enumerate(zip(('stdin', 'stdout', 'stderr'), streams, strict=True)):
        if not _is_open(fd):
            if getattr(sys, name) is stream:
                setattr(sys, name, None)
            setattr(sys, f'__{name}__', None)
            continue
        _reopen(stream, fd, f'<{name}>', unbuffered)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _reopen(stream: Any, fd: int, name: str, unbuffered: bool) -> None:
    buffer: Any = stream.buffer
    mode = 'rb' if fd == 0 else 'wb'
    raw: Any = io.FileIO(fd, mode, closefd=False)  # a new one: it remembers whether its file can seek
    terminal = raw.isatty()
    if isinstance(buffer, io.RawIOBase):
        buffer = raw
    else:
        size = os.fstat(fd).st_blksize
        buffer.__init__(raw, size if size > 1 else io.DEFAULT_BUFFER_SIZE)
    raw.name = name
    stream.__init__(
        buffer,
        stream.encoding,
        stream.errors,
        newline='\n',
        line_buffering=(terminal or fd == 2) and not unbuffered,
        write_through=stream.write_through,
    )
    stream.mode = mode[0]
