"""The one name of a file or folder, under which keys and manifests know it."""

from __future__ import annotations

import os


def absolute(path: str) -> str:
    """The absolute form of a path. Unlike that of os.path, right also where ``..`` follows a symbolic link."""
    plain = os.path.abspath(path)
    if os.pardir not in path or _same(path, plain):
        return plain
    folder, name = os.path.split(path)
    return os.path.realpath(path) if name in ('', os.pardir) else os.path.join(os.path.realpath(folder), name)


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return not os.path.lexists(one) and not os.path.lexists(other)
