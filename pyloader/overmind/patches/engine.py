"""Applies the table, keeps what was there before, and puts it back."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from overmind.logs import logger, warn_once
from overmind.patches import config
from overmind.patches.hooks import ImportWatch, initializing
from overmind.patches.table import POINTS, Namespace, Point, When
from overmind.patches.wrapper import bare, bound, constructor, original_of, plain, switch

Owner = Namespace | type  # where an attribute is replaced: the dict of a module, a registry, or a class

_MISSING: Any = object()


class _Unpatchable(Exception):
    """Why a point is left alone."""


class _Undo(NamedTuple):
    owner: Owner
    name: str
    before: Any
    after: Any


_lock = threading.RLock()  # never held while anything is imported
_points: dict[tuple[str, str], Point] = {}
_undo: list[_Undo] = []
_wrappers: dict[int, tuple[Any, FunctionType]] = {}  # by id of the original function, which is kept alive here


def monkey_patch_all() -> None:
    """Have the loading functions of all known libraries, and those named in the project's settings, use the cache."""
    from overmind.logs import configure

    configure()
    patch(config.user_points(config.folders(sys._getframe(1))))


def patch(points: Iterable[Point]) -> None:
    """The same with these points of a project."""
    with _lock:
        for point in (*POINTS, *points):
            _points.setdefault((point.module, point.attribute), point)
        switch.on = True
    _watch.start({name for point in _points.values() for name in (point.module, *point.aliases)})


def project_points() -> list[Point] | None:
    """The points of the project's settings that are in force; None while nothing is patched."""
    return [point for point in _points.values() if point.source] if switch.on else None


def unpatch_all() -> None:
    """Put every original back. A wrapper that somebody has kept only calls its original from now on."""
    from overmind.gpu import modules

    _watch.stop()
    modules.uninstall()
    with _lock:
        switch.on = False
        for point in _points.values():
            _follow_aliases(point, thorough=True)  # names that a lazy module has cached meanwhile
        while _undo:
            owner, name, before, after = _undo.pop()
            if vars_of(owner).get(name, _MISSING) is after:
                _set(owner, name, before)
        _points.clear()
        _wrappers.clear()


def _imported(module: ModuleType, executed: bool) -> None:
    """The callback of the watch; not executed means that the module had been there before we came."""
    for point in list(_points.values()):
        if point.module == module.__name__:
            _apply(point, module, executed)
        if point.aliases and module.__name__ in (point.module, *point.aliases):
            _follow_aliases(point, thorough=not executed and module.__name__ == point.module)
    if executed:
        from overmind.readiness import get_ready

        get_ready()


_watch = ImportWatch(_imported)


def _apply(point: Point, module: ModuleType, executed: bool) -> None:
    try:
        if point.constructor:
            _patch_constructor(vars(module).get(point.attribute), point)
            return
        places: Iterable[tuple[Owner, str]] = point.places(module) if point.places else _resolve(point, module)
        for owner, name in places:
            _patch(owner, name, point)
    except _Unpatchable as e:
        entry = f'{point.module}::{point.attribute}'
        if not point.source or (not executed and initializing(module)):
            logger.debug('%s is not patched: %s', entry, e)
        else:
            warn_once(f'patch {point.source} {entry}', f'{point.source}: {entry} is not patched: {e}')


def _resolve(point: Point, module: ModuleType) -> list[tuple[Owner, str]]:
    *classes, name = point.attribute.split('.')
    if not classes:
        if point.source:
            getattr(module, name, None)  # has a lazy module resolve the name, if it is one
        return [(vars(module), name)]
    if classes[0].endswith('*'):
        return [
            (value, name)
            for key, value in list(vars(module).items())
            if key.startswith(classes[0][:-1]) and isinstance(value, type) and name in vars(value)
        ]
    owner: Any = module
    for part in classes:
        owner = getattr(owner, part, None) if point.source or owner is not module else vars(module).get(part)
    if not isinstance(owner, type):
        raise _Unpatchable('there is no such class')
    return [(owner, name)]


def _patch(owner: Owner, name: str, point: Point) -> None:
    with _lock:
        if not switch.on:
            return
        before = vars_of(owner).get(name, _MISSING)
        raw = before
        if raw is _MISSING and isinstance(owner, type) and point.source:
            raw = next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), _MISSING)
        if raw is _MISSING:
            raise _Unpatchable('there is no such name')
        after = _replacement(raw, isinstance(owner, type), point.when)
        if after is None:
            raise _Unpatchable(f'it is a {type(raw).__name__}, and only functions and methods can be patched')
        if after is not raw:
            _record(owner, name, before, after)
            logger.debug('patched %s of %s', name, point.module)


def _patch_constructor(owner: Any, point: Point) -> None:
    if not isinstance(owner, type):
        raise _Unpatchable('there is no such class')
    with _lock:
        if not switch.on or original_of(vars(owner).get('__init__')) is not None:
            return
        before = {name: vars(owner).get(name, _MISSING) for name in ('__init__', '__new__')}
        new, init = constructor(owner, before['__new__'] if before['__new__'] is not _MISSING else None, point.when)
        # First the one that does nothing alone: another thread may be making an object.
        _record(owner, '__init__', before['__init__'], init)
        _record(owner, '__new__', before['__new__'], staticmethod(new))
        logger.debug('patched %s of %s', point.attribute, point.module)


def _replacement(raw: Any, in_class: bool, when: When | None) -> Any:
    """What takes the place of a class's or module's attribute: itself if it is ours already, None if it cannot be."""
    if original_of(getattr(raw, '__func__', raw)) is not None:
        return raw
    if isinstance(raw, classmethod):
        return classmethod(bound(raw.__func__, when))
    if isinstance(raw, staticmethod):
        return staticmethod(plain(raw.__func__, when))
    if isinstance(raw, type) or not callable(raw):
        return None
    if in_class:
        return bound(raw, when) if isinstance(raw, FunctionType) else None
    return _wrapper_for(raw, lambda: plain(raw, when))


def _wrapper_for(original: Any, make: Callable[[], FunctionType]) -> FunctionType:
    """One wrapper a function, under however many names it goes."""
    known = _wrappers.get(id(original))
    if known is None:
        known = _wrappers[id(original)] = original, make()
    return known[1]


def _follow_aliases(point: Point, thorough: bool) -> None:
    """Make the other names of a patched function go to its wrapper, or note for the way back that they do."""
    with _lock:
        for namespace in _alias_namespaces(point, thorough):
            value = namespace.get(point.attribute, _MISSING)
            original = original_of(value)
            if original is not None:
                if not any(undo.owner is namespace and undo.after is value for undo in _undo):
                    _undo.append(_Undo(namespace, point.attribute, original, value))
            elif switch.on and id(value) in _wrappers:
                _record(namespace, point.attribute, value, _wrappers[id(value)][1])


def _alias_namespaces(point: Point, thorough: bool) -> Iterator[Namespace]:
    modules = [module for name in point.aliases if (module := sys.modules.get(name)) is not None]
    yield from map(vars, modules)
    primary = sys.modules.get(point.module)
    wrapper = vars(primary).get(point.attribute) if primary is not None else None
    original = original_of(wrapper)
    if thorough and original is not None and any(type(module) is not ModuleType for module in modules):
        # A lazy module may be there twice: transformers runs its own __init__ again, which replaces it in sys.modules,
        # while the program keeps the first one and the names that this one has cached.
        for found in gc.get_referrers(original, wrapper):
            if isinstance(found, dict) and found.get('__name__') in point.aliases:
                yield found


def _record(owner: Owner, name: str, before: Any, after: Any) -> None:
    _set(owner, name, after)
    _undo.append(_Undo(owner, name, before, after))


def vars_of(owner: Owner) -> Any:
    """The mapping that holds an owner's own names."""
    return owner.__dict__ if isinstance(owner, type) else owner


def _set(owner: Owner, name: str, value: Any) -> None:
    if not isinstance(owner, type):
        owner[name] = value
    elif value is _MISSING:
        delattr(owner, name)
        if name == '__new__':
            _accept_arguments(owner)
    else:
        setattr(owner, name, value)


def _accept_arguments(owner: type) -> None:
    """CPython does not forget that a class had a ``__new__`` of its own: ``object.__new__``, which would be called
    next, then refuses the arguments that are for ``__init__``. Such a class is left with one that drops them."""
    try:
        owner.__new__(owner, None)
    except TypeError:
        owner.__new__ = staticmethod(bare(owner))  # type: ignore[method-assign]
