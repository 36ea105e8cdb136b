"""The public face: ``load``, ``explain``, ``monkey_patch_all``, ``unpatch_all``, ``stats``.

Importing this changes nothing and imports no library. Environment: ``OVERMIND_ROOT``, ``OVERMIND_DISABLE=1``,
``OVERMIND_STRICT=1``, ``OVERMIND_LOG_LEVEL``, ``OVERMIND_AUTOSTART=1``, ``OVERMIND_WAIT``, ``OVERMIND_TRUST``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from overmind.explain import Explanation, explain
from overmind.patches import monkey_patch_all, unpatch_all
from overmind.statistics import Load, Stats, snapshot

P = ParamSpec('P')
T = TypeVar('T')

__all__ = [
    'Explanation',
    'Load',
    'Stats',
    'explain',
    'finish_fills',
    'load',
    'monkey_patch_all',
    'stats',
    'unpatch_all',
]


def load(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``fn(*args, **kwargs)`` gives, from the cache if it is there; otherwise fn is called and its result kept.

    The caller says with this that fn is a function of its arguments, its code and the files that it reads. Raises what
    fn raises; whatever fails in the cache is a warning and a plain call, or with ``OVERMIND_STRICT=1`` an
    :class:`overmind.errors.OvermindError`.
    """
    from overmind.cache import cached_call
    from overmind.patches import unwrapped

    result: T = cached_call(unwrapped(fn), args, kwargs, patched=False)
    return result


def stats() -> Stats:
    """What this process loaded so far: ``hits``, ``misses``, ``bypasses``, ``reasons``, and ``loads`` one by one."""
    return snapshot()


def finish_fills(timeout: float | None = None) -> bool:
    """Wait, at most timeout seconds, until what was loaded is in the cache; whether nothing is left to write.

    For programs that end by ``os._exit`` or a signal: others wait by themselves at their end. An entry that could not
    be written is an :class:`overmind.errors.OvermindError` with ``OVERMIND_STRICT=1``.
    """
    from overmind import background

    done = background.finish(timeout)
    background.raise_remembered()
    return done
