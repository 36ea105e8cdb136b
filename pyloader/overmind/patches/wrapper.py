"""The functions that stand in for patched ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from overmind import settings
from overmind.patches.table import When


class _Switch:
    """Off makes every wrapper that somebody still holds a plain call of the original."""

    on = False


switch = _Switch()


def plain(original: Callable[..., Any], when: When | None) -> FunctionType:
    """Stands in for a function or a static method."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not switch.on or not settings.enabled() or (when is not None and not when(args, kwargs)):
            return original(*args, **kwargs)
        return _cached(original, args, kwargs)

    return wrapper  # type: ignore[return-value]


def bound(original: Callable[..., Any], when: When | None) -> FunctionType:
    """Stands in for a function that gets its class, or its object, as the first argument."""

    @functools.wraps(original)
    def wrapper(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not switch.on or not settings.enabled() or (when is not None and not when(args, kwargs)):
            return original(owner, *args, **kwargs)
        return _cached(MethodType(original, owner), args, kwargs)

    return wrapper  # type: ignore[return-value]


def _cached(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        from overmind import cache
    except ImportError as e:
        if settings.current().strict:
            raise
        from overmind.logs import warn_once

        warn_once('no cache module', f'loading without the cache, since a part of this package cannot be imported: {e}')
        return call(*args, **kwargs)
    return cache.cached_call(call, args, kwargs)


def _code_of(make: Callable[..., FunctionType]) -> CodeType:
    return make(lambda: None, None).__code__


# All wrappers share these two code objects, and a copy of a wrapper (types.FunctionType) has them as well, whereas a
# mark in __dict__ would be carried by functools.wraps to functions that only call a wrapper.
_CODES = (_code_of(plain), _code_of(bound))


def original_of(fn: Any) -> Callable[..., Any] | None:
    """The function behind one of our wrappers; None for anything else."""
    if not isinstance(fn, FunctionType) or fn.__code__ not in _CODES or fn.__closure__ is None:
        return None
    original: Callable[..., Any] = fn.__closure__[fn.__code__.co_freevars.index('original')].cell_contents
    return original


def unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What a user passes to ``load``, without our wrapper: bound as it was, and fn itself if there is no wrapper."""
    if isinstance(fn, MethodType):
        original = original_of(fn.__func__)
        return fn if original is None else MethodType(original, fn.__self__)
    original = original_of(fn)
    return fn if original is None else original
