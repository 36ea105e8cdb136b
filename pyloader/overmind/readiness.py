"""What the first hit of a process needs beyond the next one, done while a library is imported: a hundredth part of that
time, and a third of a hit's. The daemon is asked in the background, since it may hang."""

from __future__ import annotations

import contextlib
import sys
from functools import lru_cache

from overmind import cache, restore, users
from overmind.key import lookup, origin, versions
from overmind.patches.hooks import initializing
from overmind.store import Store


def get_ready() -> None:
    """Cheap when there is nothing left to do. Once torch is whole, also what builds on it."""
    torch = sys.modules.get('torch')
    if torch is not None and not initializing(torch):
        store = _prepare()
        lookup.get_ready()  # each library has some of what it looks at
        if store is not None and store.way == 'fd':  # known once the daemon has answered
            with contextlib.suppress(ImportError):
                import overmind.control.client  # noqa: F401


@lru_cache(maxsize=1)
def _prepare() -> Store | None:
    """The store in use, if any."""
    import overmind.structure.hashes
    import overmind.structure.later
    import overmind.structure.rebuild
    import overmind.structure.unpickle
    import overmind.structure.vocabularies  # noqa: F401

    with contextlib.suppress(ImportError):  # a load says that it is missing
        import overmind_cext  # noqa: F401
    origin.library_prefixes()
    versions.installed()
    with contextlib.suppress(Exception):  # whatever mode torch is in
        restore.get_ready()
    with contextlib.suppress(OSError, ValueError):
        users.overflow()
    return cache.look_ahead()
