"""One load through the cache: key, hit or miss, and the way back to the real loader whatever fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from overmind import statistics
from overmind.errors import Bypass, OvermindError, StoreError, Unkeyable
from overmind.key import inputs, versions
from overmind.key.lookup import LookupKey, lookup
from overmind.logs import configure, logger, warn_once
from overmind.nesting import inside, uncached
from overmind.references import References, Registry, arguments
from overmind.settings import Settings, current
from overmind.statistics import Load
from overmind.store import OpenEntry, Store

_registry = Registry()
_stores: dict[tuple[str, float, str], Store] = {}
# Calls that could not be cached are not tried again in this process: key digest -> reason.
_given_up: dict[str, str] = {}


def cached_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], patched: bool = True) -> Any:
    """fn(*args, **kwargs), from the cache if that can be.

    patched says that the program did not ask for the cache itself: an argument that cannot be a key is then no reason
    to warn. Raises what fn raises; with ``OVERMIND_STRICT=1`` also :class:`OvermindError`.
    """
    if inside():
        return _nested(fn, args, kwargs)
    settings = current()
    if settings.disabled:
        return fn(*args, **kwargs)
    configure()
    return _Session(fn, args, kwargs, settings, patched).run()


def _nested(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A loader inside a loader that is being recorded: no cache, but its files are inputs."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (str, os.PathLike)):
            inputs.note(os.fspath(value))
    return fn(*args, **kwargs)


class _Session:
    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings, patched: bool
    ) -> None:
        self._fn, self._args, self._kwargs = fn, args, kwargs
        self._settings, self._patched = settings, patched
        self._load = Load(loader=_name(fn))
        self._counted = False

    def run(self) -> Any:
        try:
            return self._through_cache()
        except OvermindError as e:
            if self._counted:
                raise
            return self._without(e)

    def _call(self) -> Any:
        with uncached():
            return self._fn(*self._args, **self._kwargs)

    def _without(self, why: OvermindError) -> Any:
        """The real loader's object, one warning, one bypass counted."""
        self._complain(why)
        start = time.perf_counter()
        result = self._call()
        self._load.seconds['load'] = time.perf_counter() - start
        self._count('bypass', str(why))
        return result

    def _complain(self, why: OvermindError) -> None:
        if isinstance(why, Unkeyable) and self._patched:
            logger.info('%s is not cached: %s', self._load.loader, why)
            return
        if isinstance(why, _Known) and not self._settings.strict:
            return
        if self._settings.strict:
            self._count('bypass', str(why))
            raise why
        warn_once(f'{type(why).__name__}:{why}', f'{self._load.loader} is loaded without the cache: {why}')

    def _count(self, outcome: statistics.Outcome, reason: str = '') -> None:
        self._load.outcome, self._load.reason, self._counted = outcome, reason, True
        statistics.record(self._load)

    def _key(self) -> LookupKey:
        return lookup(self._fn, self._args, self._kwargs, _registry.token)

    def _through_cache(self) -> Any:
        start = time.perf_counter()
        store = _store(self._settings)
        key = self._key()
        references = References(_registry, arguments(self._fn, self._args, self._kwargs))
        self._load.id = key.id
        self._load.seconds['key'] = time.perf_counter() - start
        reason = _given_up.get(key.digest)
        if reason is not None:
            raise _Known(reason)
        hit, found = self._try_hit(store, key, references)
        if found:
            return hit
        return self._miss(store, key, references)

    # ---- hit

    def _try_hit(self, store: Store, key: LookupKey, references: References) -> tuple[Any, bool]:
        start = time.perf_counter()
        try:
            entry = store.read(key.id)
            if entry is None:
                self._load.reason = self._load.reason or 'not in the cache'
                return None, False
            try:
                stale = _stale(entry, key, self._settings)
                self._load.seconds['open'] = time.perf_counter() - start
                if stale:
                    self._load.reason = stale
                    logger.info('%s: the entry %s is out of date: %s', self._load.loader, key.id, stale)
                    return None, False
                result = self._restore(entry, references)
            finally:
                entry.close()
        except StoreError as e:
            if not _is_corrupt(e):
                raise
            self._spoilt(key, e)
            return None, False
        self._load.access = 'read' if entry.copy else 'map'
        self._load.nbytes = sum(a.nbytes for a in entry.manifest.arenas)
        _registry.add(result, key.id)
        self._count('hit')
        logger.info('%s: hit, %s', self._load.loader, key.id)
        return result, True

    def _restore(self, entry: OpenEntry, references: References) -> Any:
        from overmind.restore import restore

        try:
            return restore(entry, references, self._load.seconds, self._settings.populate)
        except OvermindError:
            raise
        except MemoryError as e:
            raise StoreError(f'no memory to map {entry.manifest.id}: {e}') from e
        except OSError as e:
            raise StoreError(f'{entry.manifest.id} cannot be mapped: {e}') from e
        except Exception as e:
            from overmind.errors import CorruptEntry

            raise CorruptEntry(f'{entry.manifest.id} cannot be rebuilt: {type(e).__name__}: {e}') from e

    def _spoilt(self, key: LookupKey, e: StoreError) -> None:
        """An entry that cannot be used is loaded anew and replaced."""
        if self._settings.strict:
            raise e
        self._load.reason = str(e)
        warn_once(f'corrupt:{key.id}', f'{self._load.loader}: {e}; it is loaded anew and the entry replaced')

    # ---- miss

    def _miss(self, store: Store, key: LookupKey, references: References) -> Any:
        from overmind.progress import Progress

        with Progress(f'waiting for another process to load {key.id}') as progress:
            lock = store.lock(key.id, self._settings.wait_seconds, progress.tick)
        if lock is None:
            raise StoreError(f'another process has been loading {key.id} for {self._settings.wait_seconds:g} s')
        try:
            hit, found = self._try_hit(store, key, references)
            return hit if found else self._fill(store, key, references)
        finally:
            lock.release()

    def _fill(self, store: Store, key: LookupKey, references: References) -> Any:
        from overmind.fill import Fill

        fill = Fill(store, references, self._load, self._patched)
        try:
            result = fill.run(self._call, key, self._key)
        except OvermindError as e:
            if not fill.loaded:
                raise
            if isinstance(e, Bypass):
                _given_up[key.digest] = str(e)
            self._complain(e)
            self._count('bypass', str(e))
            return fill.result
        _registry.add(result, key.id)
        self._count('miss', self._load.reason)
        logger.info('%s: filled %s', self._load.loader, key.id)
        return result


class _Known(Bypass):
    """A reason that was given before: no second warning for it."""


def _is_corrupt(e: StoreError) -> bool:
    from overmind.errors import CorruptEntry

    return isinstance(e, CorruptEntry)


def _stale(entry: OpenEntry, key: LookupKey, settings: Settings) -> str | None:
    """Why an entry must not be used, or None."""
    manifest = entry.manifest
    if entry.owner not in settings.trust:
        return f"it belongs to uid {entry.owner}, and a pickle of another user is that user's code; see OVERMIND_TRUST"
    if not manifest.key or manifest.key[0] != ('digest', key.digest):
        return 'its key is another one with the same beginning'
    return inputs.check(manifest.sources, manifest.listings) or versions.check(manifest.distributions)


def _store(settings: Settings) -> Store:
    root = settings.root
    if root is None and settings.autostart:
        from overmind.autostart import ensure_root

        root = ensure_root(settings)
    if root is None:
        raise StoreError('OVERMIND_ROOT is not set; set it to the mount point of overmind-fs, or OVERMIND_AUTOSTART=1')
    at = (root, settings.deadline_seconds, settings.access)
    store = _stores.get(at)
    if store is None:
        store = _stores[at] = Store(*at)
    return store


def _name(fn: Callable[..., Any]) -> str:
    owner = getattr(fn, '__self__', None)
    name = getattr(fn, '__qualname__', type(fn).__qualname__)
    if isinstance(owner, type):
        return f'{owner.__module__}.{owner.__qualname__}.{name.rpartition(".")[2]}'
    return f'{getattr(fn, "__module__", "")}.{name}'
