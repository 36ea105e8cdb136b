"""The functions that stand in for patched ones."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from overmind import settings
from overmind.nesting import inside, uncached
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


class _Ready(threading.local):
    """The object that ``__new__`` has got from the cache in this thread, for which ``__init__`` comes next."""

    object: Callable[[], Any] = staticmethod(lambda: None)


_ready = _Ready()


def constructor(owner: type, new: Any, when: When | None) -> tuple[FunctionType, FunctionType]:
    """Stand in for a class's ``__new__`` (None: it has none of its own) and ``__init__``.

    The loader is the class itself: its ``__new__`` makes a plain object wherever the cache is at work already. Nothing
    is cached for subclasses, nor for calls without arguments, such as those of copy and pickle.
    """
    init: Any = owner.__init__  # type: ignore[misc]
    wrapper = _new(getattr(new, '__func__', new) or bare(owner), owner, when)
    functools.update_wrapper(wrapper, init)  # whose signature is the one of the class
    wrapper.__name__, wrapper.__qualname__ = '__new__', f'{owner.__qualname__}.__new__'
    return wrapper, _init(init)


def _new(original: Callable[..., Any], owner: Any, when: When | None) -> FunctionType:
    def __new__(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
        if cls is not owner or not (args or kwargs) or not switch.on or not settings.enabled():
            return original(cls, *args, **kwargs)
        if inside():
            _note(args, kwargs)
            return original(cls, *args, **kwargs)
        if when is not None and not when(args, kwargs):
            return original(cls, *args, **kwargs)
        result = _cached(owner, args, kwargs)
        if type(result) is owner:
            _ready.object = weakref.ref(result)
        return result

    return __new__  # type: ignore[return-value]


def _init(original: Callable[..., Any]) -> FunctionType:
    @functools.wraps(original)
    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if _ready.object() is self:
            del _ready.object
        else:
            original(self, *args, **kwargs)

    return __init__  # type: ignore[return-value]


def bare(owner: Any) -> FunctionType:
    """The ``__new__`` of a class that has none."""

    def __new__(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
        make = super(owner, cls).__new__
        return make(cls) if make is object.__new__ else make(cls, *args, **kwargs)

    return __new__  # type: ignore[return-value]


def _note(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The files of a load inside another one are inputs of that one."""
    with contextlib.suppress(ImportError):
        from overmind import cache

        cache.note(args, kwargs)


def _cached(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        from overmind import cache
    except ImportError as e:
        if settings.current().strict:
            raise
        from overmind.logs import warn_once

        warn_once('no cache module', f'loading without the cache, since a part of this package cannot be imported: {e}')
        with uncached():  # a class would come back here
            return call(*args, **kwargs)
    return cache.cached_call(call, args, kwargs)


def _code_of(make: Callable[..., FunctionType], *more: Any) -> CodeType:
    return make(lambda: None, *more).__code__


# All wrappers share these code objects, and a copy of a wrapper (types.FunctionType) has them as well, whereas a
# mark in __dict__ would be carried by functools.wraps to functions that only call a wrapper.
_CODES = (_code_of(plain, None), _code_of(bound, None), _code_of(_new, None, None), _code_of(_init))


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
