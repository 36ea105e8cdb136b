"""Large packages outside site-packages (an editable install of a library): identified by their files' stamps.

Walking such code function by function would take seconds, and a user edits it rarely.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from functools import lru_cache

LARGE = 200
_MAX_ENTRIES = 50_000


@lru_cache(maxsize=256)
def digest(module: str) -> bytes | None:
    """A digest over the source files of the top-level package of a module; None unless it is large.

    Computed once a process, like the code that runs in it.
    """
    top = sys.modules.get(module.partition('.')[0])
    # Not by getattr: a module may make up what it is asked for.
    folders = list(getattr(top, '__dict__', {}).get('__path__', ()))
    stamps = [stamp for folder in folders for stamp in _stamps(folder)]
    if len(stamps) <= LARGE:
        return None
    return hashlib.sha256(repr(sorted(stamps)).encode('utf-8', 'surrogatepass')).digest()


def _stamps(root: str) -> Iterator[tuple[str, int, int]]:
    seen = 0
    todo = [root]
    while todo:
        try:
            with os.scandir(todo.pop()) as found:
                entries = list(found)
        except OSError:
            continue
        seen += len(entries)
        if seen > _MAX_ENTRIES:
            return
        for entry in entries:
            if entry.name.endswith('.py') and entry.is_file():
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns
            elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith(('.', '__pycache__')):
                todo.append(entry.path)
