"""A miss: call the real loader, write what came out of it into a staged entry, and publish that."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overmind import chance, settings
from overmind.background import Publication, available_memory, wait_for_room
from overmind.collector import collector_paused, made_to_stay
from overmind.copier import Copier, seen_by_others
from overmind.errors import Bypass, StoreError, Unpicklable
from overmind.key import inputs, versions
from overmind.key.lookup import LookupKey
from overmind.logs import logger
from overmind.manifest import Arena, Manifest, Source
from overmind.manifest.encode import encode
from overmind.originals import STEP, WORTH, Originals, batches
from overmind.publish import Content, link_and_reserve, write_rest
from overmind.references import References
from overmind.restore import rebuild, restore
from overmind.settings import current
from overmind.sharing import agreement_with_memory, arena_for_reading
from overmind.staging import Staging, stage
from overmind.statistics import Load
from overmind.storages import map_whole
from overmind.store import Store

if TYPE_CHECKING:
    from overmind.arena import Plan
    from overmind.structure.table import Table

Call = Callable[[], Any]


@dataclass(slots=True)
class Written:
    """What the entry is made of, and what keeps the real object's memory alive until the copy is made."""

    manifest: Manifest
    structure: bytes
    plans: list[Plan]
    originals: Originals
    table: Table | None


class Fill:
    """One fill under the lock of its id. ``result`` is the real loader's object as soon as there is one.

    Whatever goes wrong with the cache is raised as Bypass or StoreError, and ``result`` is then what the user gets; or
    passed to late where the program has the result already. held has the lock, and is emptied where it is kept longer.
    """

    def __init__(
        self,
        store: Store,
        references: References,
        load: Load,
        patched: bool,
        held: contextlib.ExitStack,
        late: Callable[[Exception], None] | None = None,
    ) -> None:
        self.result: Any = None
        self.loaded = False
        self.id = self._kind = ''
        self._call: Call | None = None
        self._store, self._references, self._stats, self._patched = store, references, load, patched
        self._held, self._late = held, late
        self._meanwhile = False

    def run(self, call: Call, key: LookupKey, rekey: Callable[[], LookupKey]) -> Any:
        """Call the loader and cache its result; returns that, or the object rebuilt from the new entry."""
        self._call = call
        before, arguments = chance.states(), self._references.state()
        start = time.perf_counter()
        recorder = inputs.Recorder(key.paths, ignore=[self._store.root])
        with recorder:
            self.result = call()
            self.loaded = True
        loaded = time.perf_counter()
        self._stats.seconds['load'] = loaded - start
        if recorder.changed:
            raise Bypass(f'an input changed while it was loaded: {recorder.changed}')
        now = self._references.state()
        changed = [at[0] for at, state in arguments.items() if now[at] != state]
        if changed:
            raise Bypass(
                f'the loader changed an object that was passed to it: argument {", ".join(changed)}; '
                'make that object and call the loader in one function, and give that to overmind.api.load'
            )
        with collector_paused():
            written = self._write(key, recorder, loaded - start)
        if self._patched:
            self._refuse_chance(call, before, written)
        if key.hub_unresolved:
            key = self._again(key, rekey)
            written.manifest.id, written.manifest.key = self._store.name(key.id), _facts(key)
        self.id = key.id
        content = Content(encode(written.manifest), written.structure, written.plans)
        if self._meanwhile and self._publish_later(key.id, written, content):
            return self.result
        result = self._publish(key.id, written, content)
        if settings.current().drop_sources:
            # The real object may map the files, and what is mapped stays in the page cache.
            self.result = None
            del written
            gc.collect()
            _drop_pages(s.path for s in recorder.sources())
        return result

    def _again(self, key: LookupKey, rekey: Callable[[], LookupKey]) -> LookupKey:
        """A hub name that was not in the local cache has a commit now, and with it another key."""
        new = rekey()
        if new.id == key.id:
            return key
        lock = self._store.lock(new.id, 0, lambda: None)
        if lock is None:
            raise Bypass(f'another process is filling {new.id}')
        self._held.callback(lock.release)
        return new

    def _write(self, key: LookupKey, recorder: inputs.Recorder, seconds: float) -> Written:
        from overmind import arena
        from overmind.naming import name_tensors
        from overmind.structure.pickler import dumps
        from overmind.structure.table import Table

        start = time.perf_counter()
        table = Table()
        structure, modules = dumps(self.result, table, self._references.targets())
        name_tensors(self.result, table)
        regions, places, host = table.place()
        groups: dict[str, list[int]] = {}
        for i, r in enumerate(regions):
            groups.setdefault(r.component or 'model', []).append(i)
        self._meanwhile = self._goes_on(sum(r.nbytes for r in regions))
        shards = arena.shards(groups, regions, whole=self._meanwhile)
        plans = [arena.plan(name, [regions[i] for i in members], members) for name, members in shards]
        at = {region: (n, offset) for n, p in enumerate(plans) for region, offset in p.offsets.items()}
        sources = {s.path: s for s in [*recorder.sources(), *map(_source, modules.values())]}
        t = type(self.result)
        self._kind = f'{t.__module__}.{t.__qualname__}'
        manifest = Manifest(
            id=self._store.name(key.id),
            class_name=self._kind,
            model_name=key.model_name,
            loader=key.loader,
            scope=key.scope,
            created_ns=time.time_ns(),
            fill_seconds=seconds,
            arenas=[Arena(p.name, p.nbytes) for p in plans],
            storages=table.storage_rows(places, at),
            storage_names=_storage_names(regions, places, len(groups) > 1),
            tensors=table.rows,
            dims=table.dims,
            dtypes=table.dtypes,
            devices=table.devices,
            structure_nbytes=len(structure),
            key=_facts(key),
            sources=list(sources.values()),
            listings=recorder.listings(),
            distributions=versions.used(),
            modules=list(modules.items()),
        )
        self._stats.seconds['pickle'] = time.perf_counter() - start
        self._stats.nbytes = sum(p.nbytes for p in plans)
        return Written(manifest, structure, plans, Originals(host, places), table)

    def _refuse_chance(self, call: Call, before: dict[str, Any], first: Written) -> None:
        """Only for loads that moved a random state: again under another seed, and every byte must agree."""
        after = chance.states()
        moved = chance.moved(before, after)
        if not moved:
            return
        from overmind.structure.pickler import dumps
        from overmind.structure.table import Table

        try:
            chance.reseed()
            try:
                other = call()
            except Exception as e:
                raise Bypass(f'loading again under another seed failed: {type(e).__name__}: {e}') from e
            table = Table()
            try:
                structure, _ = dumps(other, table, self._references.targets())
            except Unpicklable as e:
                raise Bypass(str(e)) from e
            mine = first.table
            assert mine is not None
            same = structure == first.structure and len(mine.storages) == len(table.storages)
            if not same or any(not _equal(a, b) for a, b in zip(mine.storages, table.storages, strict=True)):
                raise Bypass(f'the result depends on chance (it moved the random state of {", ".join(moved)})')
        finally:
            chance.restore(after)

    # ---- while the program goes on

    def _goes_on(self, nbytes: int) -> bool:
        """Whether the program is to have its object at once, and the entry to be written meanwhile."""
        set_to = settings.current().fill
        if self._late is None or settings.current().drop_sources or not threading.main_thread().is_alive():
            return False
        if set_to in ('auto', 'subprocess'):
            processes = sys.modules.get('multiprocessing.process')
            if processes is not None and processes.current_process().daemon:
                return False  # a worker that its pool ends by a signal, as soon as it has nothing to do
            # A small entry is written in no time, and where memory is short the program is to share that of the cache.
            return nbytes >= WORTH and available_memory() >= 2 * nbytes
        return set_to == 'background'

    def _publish_later(self, id: str, written: Written, content: Content) -> bool:
        """Whether that has begun. What cannot be rebuilt is found before."""
        on_host = dataclasses.replace(written.manifest, devices=['cpu'] * len(written.manifest.devices))
        with collector_paused():  # until the object is gone again
            self._rebuilt(lambda: rebuild(on_host, content.structure, written.originals.all(), self._references))
            made_to_stay()  # or what all this has made has the collector look at everything within the next load
        start = time.perf_counter()
        try:
            if seen_by_others(content.plans):
                return False
            wait_for_room(self._stats.nbytes)
            copier = Copier(content.plans)
        except (OSError, StoreError) as e:
            logger.debug('the entry is written before the program goes on: %s', e)
            return False
        assert self._late is not None
        sources, listings = written.manifest.sources, written.manifest.listings
        changed = functools.partial(inputs.check, sources, listings)
        held = self._held.pop_all()
        try:
            Publication(self._store, id, content, copier, self._stats, held, changed, self._late).start()
        except RuntimeError as e:
            logger.debug('the entry is written before the program goes on: %s', e)
            copier.close()
            self._held.push(held)
            return False
        self._stats.seconds['fork'] = time.perf_counter() - start
        return True

    # ---- before it goes on

    def _publish(self, id: str, written: Written, content: Content) -> Any:
        try:
            with stage(self._store, id) as staging:
                return self._fill(staging, written, content)
        except OSError as e:
            raise self._store.explain(e) from e

    def _fill(self, staging: Staging, written: Written, content: Content) -> Any:
        start = time.perf_counter()
        plans = link_and_reserve(staging, content, agreement_with_memory(written), self._stats)
        frugal = self._let_go(written, plans)
        try:
            for plan in plans:
                with staging.arena(plan.name, plan.nbytes) as (fd, mapped):
                    self._copy(fd, plan, mapped, staging, frugal, written)
            copied = time.perf_counter()
            self._stats.seconds['copy'] = copied - start
            write_rest(staging, content)
            entry = staging.reopen()
            self._stats.access = entry.access
            try:
                result = self._check(entry)
            finally:
                entry.close()
            rebuilt = time.perf_counter()
            staging.commit()
        except Exception:
            if frugal:
                self._bring_back(written)
            raise
        self._stats.seconds['commit'] = time.perf_counter() - rebuilt
        return result

    def _let_go(self, written: Written, plans: list[Plan]) -> bool:
        """Give up the real object where that saves memory; its storages follow as they are copied.

        Before that it is rebuilt over them, so that what cannot be rebuilt is still there to be returned.
        """
        manifest = written.manifest
        shared = self._store.way != 'read' and all(d == 'cpu' for d in manifest.devices)
        if not shared or sum(p.nbytes for p in plans) < WORTH:
            return False
        self._rebuilt(lambda: rebuild(manifest, written.structure, written.originals.all(), self._references))
        self.result = written.table = None
        written.originals.free_cycles()
        return True

    def _bring_back(self, written: Written) -> None:
        """The object again, over what is not copied yet and what is."""
        try:
            storages = written.originals.all()
            self.result = rebuild(written.manifest, written.structure, storages, self._references)
        except Exception as e:  # it went well before, over the same bytes
            logger.debug('loaded again: %s', e)
            assert self._call is not None
            self.result = self._call()

    def _copy(self, fd: int, plan: Plan, mapped: bool, staging: Staging, frugal: bool, written: Written) -> None:
        """All pieces of a plan; where the object was given up, let go of each as its copy is there."""
        import overmind_cext

        def work(header: bytes, pieces: list[tuple[int, int, int]], _: Written, own: int) -> None:
            overmind_cext.write_arena(own, plan.nbytes, header, pieces, mapped=mapped)

        arena = self._window(staging, plan) if frugal and mapped else None
        header = plan.header
        for pieces in batches(plan.pieces, STEP) if arena is not None else [plan.pieces]:
            # The pieces are addresses in what is written, to which the thread has a reference of its own.
            self._store.patiently_with(fd, functools.partial(work, header, pieces, written))
            header = b''
            if arena is not None:
                written.originals.let_go(plan, pieces, arena)

    def _window(self, staging: Staging, plan: Plan) -> Any:
        """A staged arena as readers have it: mapped from the descriptor for writing, it could not be sealed."""
        with arena_for_reading(self._store, 'staging', staging.name, plan.name) as (file, memory):
            return map_whole(memory, plan.nbytes, lease=file)

    def _check(self, entry: Any) -> Any:
        """What cannot be rebuilt is found before anybody else meets it.

        The rebuilt object is the one to return, so that this process shares memory too; but not from a device, where
        there would be two copies.
        """
        on_host = all(d == 'cpu' for d in entry.manifest.devices)
        if not on_host:
            entry.manifest.devices = ['cpu'] * len(entry.manifest.devices)
        pin = current().pin
        result = self._rebuilt(lambda: restore(entry, self._references, self._stats.seconds, pin=pin))
        return result if on_host else self.result

    def _rebuilt(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except StoreError:
            raise
        except Exception as e:
            raise Unpicklable(f'the result ({self._kind}) cannot be rebuilt: {type(e).__name__}: {e}') from e


def _drop_pages(paths: Iterable[str]) -> None:
    """Give back the page cache of files; what others have mapped and what is not on disk yet stays."""
    for path in paths:
        with contextlib.suppress(OSError), open(path, 'rb', buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _equal(a: Any, b: Any) -> bool:
    import torch

    if a.nbytes() != b.nbytes():
        return False
    x, y = (torch.empty(0, dtype=torch.uint8, device=s.device).set_(s) for s in (a, b))
    return bool(torch.equal(x, y))


def _facts(key: LookupKey) -> list[tuple[str, str]]:
    return [('digest', key.digest), *key.facts]


def _source(path: str) -> Source:
    st = os.stat(path)
    return Source(path, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino)


def _storage_names(regions: list[Any], places: list[tuple[int, int]], several: bool) -> list[str]:
    """For storages that are a whole named region; what has no name is shown by its number alone."""
    names = []
    for at, offset in places:
        r = regions[at] if at >= 0 else None
        if r is None or offset or r.name.startswith('storage.'):
            names.append('')
        else:
            names.append(f'{r.component}.{r.name}' if several and r.component else r.name)
    return names
