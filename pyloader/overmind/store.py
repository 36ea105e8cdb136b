"""Entries of the cache as files: reading, locking, staging and committing (docs/protocol.md).

The same operations work on a mount of the daemon and on a plain directory. A daemon that hangs must not hang the
program, so every first touch runs in a thread with a deadline.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from overmind_cext import open_entry

from overmind import directory
from overmind.advice import meaning
from overmind.deadline import guarded, hanging
from overmind.entries import Descriptors, Opened, OpenEntry, Way, check_size, close, close_entry, is_still, read_file
from overmind.errors import CorruptEntry, Hangs, StillHangs, StoreError
from overmind.locks import Lock, hold, keep_from_children, let_children_have
from overmind.logs import warn_once
from overmind.manifest import Manifest, decode
from overmind.users import outer

if TYPE_CHECKING:
    from overmind.control.client import Place

T = TypeVar('T')

_REPLACED_AT_MOST = 3  # times while memory is asked for
HANG_PAUSE = 20.0  # seconds for which a daemon that hung is left alone: each touch costs the whole deadline


class Store:
    """One root folder: a mount of the daemon, or a plain directory. deadline is in seconds."""

    def __init__(self, root: str, deadline: float, access: str = 'auto') -> None:
        self.root = os.path.abspath(root)
        self.deadline = deadline
        self.access = access
        self._seen: tuple[int, int] | None = None  # the root that was looked at
        self._owner = -1  # of that root
        self._hung_until = 0.0
        self.is_mount = False
        self.way: Way = 'read'  # known once the root was looked at

    # ---- names

    def name(self, id: str, uid: int | None = None) -> str:
        """The folder of an id, by default that of this user. On a mount its owner has the id, others one that ends in
        their uid, which the daemon lets nobody else fill or lock. To be asked when the root has been looked at."""
        uid = os.geteuid() if uid is None else uid
        return id if not self.is_mount or uid == self._owner else f'{id}.u{outer(uid)}'

    # ---- reading

    def read(self, id: str, trust: Sequence[int] = ()) -> OpenEntry | None:
        """The entry of this user or else of the first trusted one who has it, or None. Raises CorruptEntry or
        StoreError."""

        self._look_at_root()
        seen = self._seen
        entry = self._first_open(id, trust)
        if self._seen != seen:  # another daemon, for which names may be others
            close_entry(entry)
            entry = self._first_open(id, trust)
        if entry is not None and entry.folder >= 0:
            # May take seconds, and no daemon can hang.
            try:
                directory.verify(entry.folder, id, entry.files())
            except BaseException as e:
                removed = not is_still(os.path.join(self.root, 'pipelines', id), entry.folder)
                entry.close()
                if removed and isinstance(e, (FileNotFoundError, CorruptEntry)):
                    return None
                if isinstance(e, OSError):
                    raise self.explain(e) from e
                raise
        return entry

    def _first_open(self, id: str, trust: Sequence[int]) -> OpenEntry | None:
        try:
            return self._first(id, trust, lambda name: self._open(f'pipelines/{name}', missing_ok=True))
        except OSError as e:
            raise self.explain(e) from e

    def _first(self, id: str, trust: Sequence[int], look: Callable[[str], T | None]) -> T | None:
        """What look finds under this user's name of an id, or else under that of the first trusted one."""
        found = look(self.name(id))
        others = dict.fromkeys(self.name(id, uid) for uid in trust)
        others.pop(self.name(id), None)
        try:
            return found or next(filter(None, map(look, others)), None)
        except PermissionError:
            warn_once(
                f'unshared:{self.root}',
                f'{self.root}: entries of users in OVERMIND_TRUST cannot be read, so this user has entries of its own; '
                'overmind-fs mount --share lets users read those of others',
            )
            return None

    def peek(self, id: str, trust: Sequence[int] = ()) -> tuple[Manifest, int] | None:
        """Manifest and owner of an entry that a load would find whole, or None. Takes no lease and counts as no hit."""

        def whole(id: str) -> tuple[Manifest, int] | None:
            try:
                manifest, owner = self._manifest(f'pipelines/{id}')
            except FileNotFoundError:
                return None
            sizes = {'structure.pkl': manifest.structure_nbytes}
            sizes.update((os.path.join('tensors', a.name), a.nbytes) for a in manifest.arenas)
            try:
                for name, nbytes in sizes.items():
                    check_size(name, os.stat(os.path.join(self.root, 'pipelines', id, name)).st_size, nbytes)
            except FileNotFoundError as e:
                raise CorruptEntry(f'{e.filename} is missing') from e
            return manifest, owner

        def look() -> tuple[Manifest, int] | None:
            self._check_root()
            return self._first(id, trust, whole)

        return self.guard(look)

    def beginning_with(self, prefix: str, limit: int) -> list[Manifest]:
        """The manifests of the newest entries whose ids begin like that; those that cannot be read are left out."""
        return [manifest for manifest, _ in self.newest(limit, prefix)]

    def newest(self, limit: int, prefix: str = '') -> list[tuple[Manifest, int]]:
        """Manifests and owners of the newest entries; those that cannot be read are left out."""

        def look() -> list[tuple[Manifest, int]]:
            self._check_root()
            with os.scandir(os.path.join(self.root, 'pipelines')) as found:
                entries = [e for e in found if e.name.startswith(prefix)]
            entries = sorted(entries, key=lambda e: -e.stat().st_mtime_ns)[:limit]
            manifests = []
            for e in entries:
                with contextlib.suppress(CorruptEntry, OSError):
                    manifests.append(self._manifest(f'pipelines/{e.name}'))
            return manifests

        return self.guard(look)

    def _manifest(self, folder: str) -> tuple[Manifest, int]:
        data, owner = read_file(os.path.join(self.root, folder, 'manifest'))
        return self._decoded(data, folder), owner

    def _decoded(self, data: bytes, folder: str) -> Manifest:
        manifest = decode(data)
        if manifest.id != os.path.basename(folder):
            raise CorruptEntry(f'{os.path.join(self.root, folder, "manifest")} is that of {manifest.id!r}')
        return manifest

    def staged(self, name: str) -> OpenEntry:
        """A fill under way, as a reader will find it. Raises as read does."""
        self._look_at_root()
        try:
            entry = self._open(f'staging/{name}', missing_ok=False)
        except OSError as e:
            raise self.explain(e) from e
        assert entry is not None
        return entry

    def _open(self, folder: str, missing_ok: bool) -> OpenEntry | None:
        """The entry in a folder of the root. Raises OSError beside what read raises."""
        base = os.path.join(self.root, folder)
        for _ in range(_REPLACED_AT_MOST):
            opened = self._opened(folder)
            if opened.root != self._seen:  # another daemon
                opened.close()
                self.guard(self._check_root)
                opened = self._opened(folder)
            way = self.way  # which another thread may find to be another one
            try:
                if missing_ok and opened.is_missing():
                    return None
                if not opened.manifest:
                    opened.check(base)
                manifest = self._decoded(opened.manifest, folder)
                opened.check(base)
                entry = opened.entry(manifest, way, self)
                if way != 'fd' or self._passes(entry, folder, [inode for *_, inode in opened.arenas]):
                    return entry
                if not missing_ok or self.guard(functools.partial(is_still, base, opened.folder)):
                    raise CorruptEntry(f'{base}: the daemon does not know its arenas')
            finally:
                opened.close()
        return None

    def _opened(self, folder: str) -> Opened:
        self._raise_if_hung()
        try:
            found = open_entry(self.root, folder, not self.is_mount, self.deadline)
        except RuntimeError as e:
            raise StoreError(f'{self.root} is not touched without a thread to do it: {e}') from e
        if found is None:
            self._has_hung()
            raise Hangs(hanging(self.root, self.deadline))
        return Opened(*found)

    def _passes(self, entry: OpenEntry, folder: str, inodes: list[int]) -> bool:
        """Put the daemon's memory in the place of the arenas' files, which stay open as leases; where the socket fails,
        the files are read. False if the daemon has no such entry (any more)."""
        place, id = os.path.split(folder)
        arenas = entry.manifest.arenas

        def ask() -> Descriptors:
            found = Descriptors()
            for a, inode in zip(arenas, inodes, strict=True):
                fd = self.memory('staging' if place == 'staging' else 'pipelines', id, a.name, inode)
                found.numbers.append(fd)
                check_size(a.name, os.fstat(fd).st_size, a.nbytes)
            return found

        entry.access = 'read'  # until there is memory
        try:
            entry.memory = self._guarded(ask)
            entry.arenas, entry.leases, entry.access = entry.memory.numbers, entry.arenas, 'fd'
        except FileNotFoundError:
            entry.close()
            return False
        except BaseException as e:
            if isinstance(e, (CorruptEntry, Hangs)) or not isinstance(e, (OSError, StoreError)):
                entry.close()
                raise
            self.socket_failed(e)
        return True

    def _look_at_root(self) -> None:
        if self._seen is None:
            self.guard(self._check_root)

    def _check_root(self) -> None:
        """Is it there, and how are its arenas reached? Asked again when another daemon is there: the kernel remembers
        the times of a mount's root, which are those of its daemon's start."""
        try:
            root = os.stat(self.root)
        except FileNotFoundError:
            root = None
        if root is None or not stat.S_ISDIR(root.st_mode):
            raise StoreError(f'{self.root} is not a folder; mount the cache there: overmind-fs mount {self.root}')
        if self._seen == (root.st_dev, root.st_mtime_ns):
            return
        way = self._offered()
        if way is not None:
            self.is_mount, self.way = True, way
        elif self.is_mount:
            # The folder below it is not a cache, and would be no place for a mount if it became one.
            raise StoreError(f'the daemon is gone; start it again: overmind-fs mount {self.root}')
        else:
            directory.prepare(self.root)
            self.way = 'read' if self.access == 'read' else 'directory'
        self._seen, self._owner = (root.st_dev, root.st_mtime_ns), root.st_uid

    def _offered(self) -> Way | None:
        """The way of a mount; None where there is none."""
        status = directory.status_of(self.root)
        if status is None:
            return None
        return self._best(*[bool(status.get(n, {}).get('active')) for n in ('passthrough', 'fd_passing')])

    def look_ahead(self) -> None:
        """Ask a daemon in the background what the first load would ask it; a third of what that load waits for. Nothing
        is said of what is wrong: the load will meet it."""

        def look() -> None:
            with contextlib.suppress(Exception):
                root = os.stat(self.root)
                way = self._offered()
                if way is not None and self._seen is None:  # the answer may come when a load has asked by itself
                    self.is_mount, self.way, self._owner = True, way, root.st_uid
                    self._seen = root.st_dev, root.st_mtime_ns

        with contextlib.suppress(RuntimeError):  # there is no thread to be had
            _thread.start_new_thread(look, ())

    def _best(self, passthrough: bool, passing: bool) -> Way:
        """Of the ways that the daemon offers, the best one that OVERMIND_ACCESS allows."""
        if passthrough and self.access in ('auto', 'map'):
            return 'passthrough'
        if passing and self.access in ('auto', 'fd'):
            return 'fd'
        return 'read'

    def guard(self, work: Callable[[], T], seconds: float = 0, late: Callable[[T], None] | None = None) -> T:
        try:
            return self._guarded(work, late, seconds)
        except OSError as e:
            raise self.explain(e) from e

    def _guarded(self, work: Callable[[], T], late: Callable[[T], None] | None = None, seconds: float = 0) -> T:
        self._raise_if_hung()
        try:
            return guarded(self.root, seconds or self.deadline, work, late)
        except Hangs:
            self._has_hung()
            raise

    def _raise_if_hung(self) -> None:
        left = self._hung_until - time.monotonic()
        if left > 0:
            raise StillHangs(f'{self.root} did not answer; the daemon is tried again in {left:.0f} s')

    def _has_hung(self) -> None:
        self._hung_until = time.monotonic() + HANG_PAUSE

    def patiently(self, work: Callable[[], T], late: Callable[[T], None] | None = None) -> T:
        """work(), which may take long, as making room for gigabytes does, for as long as the daemon answers others."""
        answers = functools.partial(os.path.lexists, os.path.join(self.root, 'control'))
        try:
            return guarded(self.root, self.deadline, work, late, lambda: guarded(self.root, self.deadline, answers))
        except Hangs:
            self._has_hung()
            raise

    def patiently_with(self, fd: int, work: Callable[[int], T]) -> T:
        """work(fd), patiently. It gets a descriptor of its own: in a daemon that hangs it may be left behind, and fd be
        another file by then."""
        own = os.dup(fd)
        keep_from_children(own)

        def work_and_close() -> T:
            try:
                return work(own)
            finally:
                let_children_have(own)
                close(own)

        return self.patiently(work_and_close)

    def explain(self, e: OSError) -> StoreError:
        """What an error of a file operation means to a user, and what to do."""
        return StoreError(f'{e.filename or self.root}: {meaning(e, self.root, self.is_mount)}')

    # ---- single flight

    def lock(self, id: str, seconds: float, tick: Callable[[], None]) -> Lock | None:
        """Wait for the lock of an id at most so many seconds, calling tick now and then; None when time is up."""

        def acquire() -> int:
            self._check_root()
            if not self.is_mount:
                directory.prepare(self.root)  # somebody may have emptied the folder since
            return self._open_lock(id)

        fd = self.guard(acquire, late=close)
        lock = hold(fd)
        until, pause = time.monotonic() + seconds, 0.001
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    lock.take(self.root)
                    if self.is_mount or self._is_named(lock.fd, id):
                        return lock
                    lock.release()  # gc has removed it while this one waited
                    lock = hold(self.guard(acquire, late=close))
                if time.monotonic() > until:
                    lock.release()
                    return None
                tick()
                time.sleep(pause)
                pause = min(pause * 1.5, 0.05)
        except BaseException:
            lock.release()
            raise

    def _open_lock(self, id: str) -> int:
        path = os.path.join(self.root, 'locks', self.name(id))
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _is_named(self, fd: int, id: str) -> bool:
        """Whether a lock of a plain directory is still the one that others open."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(os.path.join(self.root, 'locks', id)))
        except OSError:
            return False

    def attend(self, id: str) -> Lock:
        """A handle on a lock that a parent process holds: the daemon then drops our staging if we die."""

        def attend() -> int:
            self._check_root()
            return self._open_lock(id)

        fd = self.guard(attend, late=close)
        return hold(fd)

    # ---- filling

    def memory(self, place: Place, id: str, name: str, inode: int) -> int:
        """The memory of an arena whose file is open, and has that inode, over the daemon's socket."""
        from overmind.control.client import arena_fd  # with FlatBuffers, which passthrough does without

        # Half of the time for touching the mount, so that there is some left to go on without the socket.
        return arena_fd(self.root, place, id, name, inode, self.deadline / 2)

    def socket_failed(self, e: Exception) -> None:
        text = (e.strerror if isinstance(e, OSError) else None) or str(e)
        warn_once(f'socket:{self.root}', f'{self.root}: arenas are copied instead of shared: {text}')
