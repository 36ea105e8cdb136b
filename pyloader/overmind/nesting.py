"""Whether this context is inside a load that the cache is already dealing with."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_inside: contextvars.ContextVar[bool] = contextvars.ContextVar('overmind_inside', default=False)


def inside() -> bool:
    """Loaders that are called now run unpatched: in the real loader of a fill, or in a rebuild."""
    return _inside.get()


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Within this block nothing goes through the cache."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)
