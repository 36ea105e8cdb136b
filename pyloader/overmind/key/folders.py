"""What is in a folder that is an argument, and in those below it."""

from __future__ import annotations

import os
from collections.abc import Iterator

MAX_FILES = 2000
MAX_DEPTH = 6


def tree(root: str) -> dict[str, tuple[list[str], list[str]]] | None:
    """All names, and the files, of each folder below root; None where there is too much of it."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    count = 0
    for folder, every, files in _walk(root, 0):
        count += len(files)
        if count > MAX_FILES or len(found) > MAX_FILES:
            return None
        found[folder] = (every, files)
    return found


def _walk(folder: str, depth: int) -> Iterator[tuple[str, list[str], list[str]]]:
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError:
        return
    below = [e for e in found if e.is_dir()]
    yield folder, [e.name for e in found], [e.name for e in found if e not in below]
    if depth < MAX_DEPTH:
        for entry in below:
            # Caches and version control, none of which a loader reads.
            if not entry.name.startswith('.') and entry.name != '__pycache__':
                yield from _walk(entry.path, depth + 1)
