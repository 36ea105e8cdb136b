"""One load through the cache: key, hit or miss, and the way back to the real loader whatever fails."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overmind import statistics
from overmind.activity import loading, only_waiting
from overmind.collector import collector_paused, made_to_stay
from overmind.entries import OpenEntry
from overmind.errors import Bypass, CorruptEntry, Hangs, OvermindError, StoreError, Unkeyable
from overmind.key import inputs, versions
from overmind.key.lookup import LookupKey, lookup
from overmind.locks import Lock
from overmind.logs import configure, logger, warn_once
from overmind.manifest import Manifest
from overmind.nesting import inside, uncached
from overmind.references import References, Registry, arguments
from overmind.settings import Settings, current
from overmind.statistics import Load
from overmind.store import Store
from overmind.users import unmapped

if TYPE_CHECKING:
    from overmind.handover import Parcel

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
    if settings.strict and (background := sys.modules.get('overmind.background')) is not None:
        background.raise_remembered()
    with loading():
        return _Session(fn, args, kwargs, settings, patched).run()


def prepare(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings
) -> tuple[Store, LookupKey, References]:
    """What a load needs before it looks for its entry. Raises OvermindError where the cache cannot be used."""
    store = _store(settings)
    tokens = _Tokens()
    key = lookup(fn, args, kwargs, tokens)
    references = References(_registry, arguments(fn, args, kwargs))
    references.require(tokens.met())
    return store, key, references


class _Tokens:
    """The tokens of one call: making one walks all tensors of an object, and a key asks for it several times."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str | None]] = {}  # with the objects, so that no other one gets their ids

    def __call__(self, obj: Any) -> str | None:
        found = self._known.get(id(obj))
        if found is None:
            found = self._known[id(obj)] = (obj, _registry.token(obj))
        return found[1]

    def met(self) -> list[Any]:
        """The objects of the cache that the key has something of."""
        return [obj for obj, token in self._known.values() if token is not None]


def given_up(key: LookupKey) -> str | None:
    """Why a load of this key could not be cached earlier in this process."""
    return _given_up.get(key.digest)


def stale(manifest: Manifest, key: LookupKey) -> str | None:
    """Why an entry under the id of the key must not be used, or None."""
    if not manifest.key or manifest.key[0] != ('digest', key.digest):
        return 'its key is another one with the same beginning'
    return inputs.check(manifest.sources, manifest.listings) or versions.check(manifest.distributions)


def untrusted(owner: int, settings: Settings) -> str | None:
    """Why the entries of a user must not be read, or None."""
    if owner in settings.trust:
        return 'its owner has no uid in this user namespace' if unmapped(owner) else None
    return f"it belongs to uid {owner}, and a pickle of another user is that user's code; see OVERMIND_TRUST"


def _nested(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A loader inside a loader that is being recorded: no cache, but its files are inputs."""
    note(args, kwargs)
    return fn(*args, **kwargs)


def note(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The files among the arguments of a loader are inputs of the load that is being recorded."""
    for value in (*args, *kwargs.values()):
        # Not "cpu" or "auto", which would make the working directory an input.
        if isinstance(value, (str, os.PathLike)) and (os.path.isabs(value) or os.path.lexists(value)):
            inputs.note(os.fspath(value))


class _Session:
    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings, patched: bool
    ) -> None:
        self._fn, self._args, self._kwargs = fn, args, kwargs
        self._settings, self._patched = settings, patched
        self._load = Load(loader=_name(fn))
        self._counted = False
        self._raised = False  # by the real loader, so that it is the program's

    def run(self) -> Any:
        try:
            return self._through_cache()
        except Exception as e:
            if self._counted or self._raised:
                raise
            return self._without(failure(e))

    def _call(self) -> Any:
        try:
            with uncached():
                return self._fn(*self._args, **self._kwargs)
        except BaseException:
            self._raised = True
            raise

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
        about = 'Hangs' if isinstance(why, Hangs) else f'{type(why).__name__}:{why}'
        warn_once(about, f'{self._load.loader} is loaded without the cache: {why}')

    def _count(self, outcome: statistics.Outcome, reason: str = '') -> None:
        self._load.outcome, self._load.reason, self._counted = outcome, reason, True
        statistics.record(self._load)

    def _key(self) -> LookupKey:
        return lookup(self._fn, self._args, self._kwargs, _registry.token)

    def _through_cache(self) -> Any:
        start = time.perf_counter()
        with collector_paused():
            store, key, references = prepare(self._fn, self._args, self._kwargs, self._settings)
            self._load.id = key.id
            self._load.seconds['key'] = time.perf_counter() - start
            reason = given_up(key)
            if reason is not None:
                raise _Known(reason)
            hit, found = self._try_hit(store, key, references)
            if found:
                made_to_stay()
        return hit if found else self._miss(store, key, references)

    # ---- hit

    def _try_hit(
        self, store: Store, key: LookupKey, references: References, outcome: statistics.Outcome = 'hit'
    ) -> tuple[Any, bool]:
        start = time.perf_counter()
        try:
            entry = store.read(key.id, self._settings.trust)
            if entry is None:
                self._load.reason = self._load.reason or 'not in the cache'
                return None, False
            try:
                why = untrusted(entry.owner, self._settings)
                if why:
                    refusal = StoreError if store.is_mount else CorruptEntry  # in one's own folder it can be replaced
                    raise refusal(f'{key.id} is not read: {why}')
                why = stale(entry.manifest, key)
                self._load.seconds['open'] = time.perf_counter() - start
                if why:
                    self._load.reason = why
                    logger.info('%s: the entry %s is out of date: %s', self._load.loader, key.id, why)
                    return None, False
                result = self._restore(entry, references)
            finally:
                entry.close()
        except StoreError as e:
            if not isinstance(e, CorruptEntry):
                raise
            self._spoilt(key, e)
            return None, False
        self._load.access = entry.access
        self._load.nbytes = sum(a.nbytes for a in entry.manifest.arenas)
        _registry.add(result, key.id)
        self._count(outcome, self._load.reason if outcome == 'miss' else '')
        logger.info('%s: %s, %s', self._load.loader, outcome, key.id)
        return result, True

    def _restore(self, entry: OpenEntry, references: References) -> Any:
        from overmind.restore import restore

        try:
            return restore(entry, references, self._load.seconds, self._settings.populate, self._settings.pin)
        except OvermindError:
            raise
        except MemoryError as e:
            raise StoreError(f'no memory to map {entry.manifest.id}: {e}') from e
        except OSError as e:
            raise StoreError(f'{entry.manifest.id} cannot be mapped: {e.strerror or e}') from e
        except Exception as e:
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

        with only_waiting(), Progress(f'waiting for another process to load {key.id}') as progress:
            lock = store.lock(key.id, self._settings.wait_seconds, progress.tick)
        if lock is None:
            raise StoreError(f'another process has been loading {key.id} for {self._settings.wait_seconds:g} s')
        with contextlib.ExitStack() as held:
            held.callback(lock.release)
            hit, found = self._try_hit(store, key, references)
            if found:
                return hit
            with Progress(f'loading {key.id} into the cache', background=True):
                call = self._packed() if self._settings.fill == 'subprocess' else None
                id = self._fill_elsewhere(store, lock, key, call) if call is not None else None
                if id is None:
                    return self._fill(store, key, references, held)
                return self._filled_elsewhere(store, id, key, references)

    def _packed(self) -> Parcel | None:
        """The call for another process; None where cached objects that only this one has are part of it."""
        from overmind import fill_process

        tokens: list[str] = []

        def token(obj: Any) -> str | None:
            found = _registry.token(obj)
            if found is not None:
                tokens.append(found)
            return found

        lookup(self._fn, self._args, self._kwargs, token)
        return None if tokens else fill_process.pack((self._fn, self._args, self._kwargs))

    def _fill_elsewhere(self, store: Store, lock: Lock, key: LookupKey, call: Parcel) -> str | None:
        """The loader runs in a process of its own; the id of the entry, or None where it must run in this one."""
        from overmind import fill_process

        try:
            return fill_process.fill(store, lock, key, call, self._patched, self._load)
        except fill_process.Raised as e:
            self._raised = True
            raise e.exception from e.cause
        except Bypass as e:
            _given_up[key.digest] = str(e)
            raise

    def _filled_elsewhere(self, store: Store, id: str, key: LookupKey, references: References) -> Any:
        """The entry that another process has just filled, read as on a hit."""
        if id != key.id:
            key = self._key()
            self._load.id = key.id
        result, found = self._try_hit(store, key, references, 'miss')
        if not found:
            raise StoreError(f'{key.id} was filled by another process and cannot be used: {self._load.reason}')
        return result

    def _fill(self, store: Store, key: LookupKey, references: References, held: contextlib.ExitStack) -> Any:
        from overmind.fill import Fill

        late = _Late(self._load, key.digest, self._settings.strict)
        fill = Fill(store, references, self._load, self._patched, held, late)
        try:
            result = fill.run(self._call, key, self._key)
        except Exception as e:
            if not fill.loaded:
                raise
            # Not kept in a variable here: that would be a cycle, and the lease on the dropped staging would live on.
            self._not_kept(failure(e), key)
            return fill.result
        _registry.add(result, key.id)
        self._count('miss', self._load.reason)
        how = 'loaded; being written is' if 'fork' in self._load.seconds else 'filled'
        logger.info('%s: %s %s', self._load.loader, how, key.id)
        return result

    def _not_kept(self, why: OvermindError, key: LookupKey) -> None:
        """The loader has run, and its result is the program's, but not the cache's."""
        if isinstance(why, Bypass):
            _given_up[key.digest] = str(why)
        self._complain(why)
        self._count('bypass', str(why))


class _Late:
    """Takes the failure of an entry whose object the program has already."""

    def __init__(self, load: Load, digest: str, strict: bool) -> None:
        self._load, self._digest, self._strict = load, digest, strict

    def __call__(self, e: Exception) -> None:
        why = failure(e)
        if isinstance(why, Bypass):
            _given_up[self._digest] = str(why)
        statistics.amend(self._load, str(why))
        text = f'{self._load.loader} is loaded, but not kept in the cache: {why}'
        if self._strict:
            from overmind.background import remember

            logger.error('%s', text)
            remember(why)
        else:
            warn_once(f'{type(why).__name__}:{why}', text)


class _Known(Bypass):
    """A reason that was given before: no second warning for it."""


def failure(e: Exception) -> OvermindError:
    """An error that no part of this package foresaw is a failure of the cache like any other."""
    if isinstance(e, OvermindError):
        return e
    logger.debug('unexpected', exc_info=e)
    why = StoreError(f'unexpected {type(e).__name__}: {e}')
    why.__cause__ = e
    return why


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


def look_ahead() -> Store | None:
    """See Store.look_ahead; nothing where no root is set or a load is under way, whose inputs are being recorded."""
    settings = current()
    if settings.root is None or settings.disabled or inside():
        return None
    store = _store(settings)
    store.look_ahead()
    return store


def _name(fn: Callable[..., Any]) -> str:
    owner = getattr(fn, '__self__', None)
    name = getattr(fn, '__qualname__', type(fn).__qualname__)
    if isinstance(owner, type):
        return f'{owner.__module__}.{owner.__qualname__}.{name.rpartition(".")[2]}'
    return f'{getattr(fn, "__module__", "")}.{name}'
