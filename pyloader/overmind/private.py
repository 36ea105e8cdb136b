"""Folders that are one user's alone. Without imports of the package, for the quick start of ``overmind run``."""

from __future__ import annotations

import os
import stat


def why_not_private(folder: str) -> str | None:
    """Why others could have their hands in a folder; None if it is a real one, ours, and closed to them."""
    try:
        info = os.lstat(folder)
    except OSError as e:
        return f'cannot be looked at ({e.strerror})'
    if not stat.S_ISDIR(info.st_mode):
        return 'is not a real directory'
    if info.st_uid != os.geteuid():
        return f'belongs to uid {info.st_uid}'
    if stat.S_IMODE(info.st_mode) & 0o077:
        return f'is open to others (mode {stat.S_IMODE(info.st_mode):04o})'
    return None
