"""Entries of the cache as files: reading, locking, staging and committing (docs/protocol.md).

The same operations work on a mount of the daemon and on a plain directory. A daemon that hangs must not hang the
program, so every first touch runs in a thread with a deadline.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

from overmind import directory
from overmind.deadline import guarded
from overmind.errors import CorruptEntry, Hangs, StoreError
from overmind.logs import warn_once
from overmind.manifest import Manifest, decode
from overmind.users import outer, within

if TYPE_CHECKING:
    from overmind.control.client import Place

T = TypeVar('T')

MAX_BLOB = 1 << 30
HANG_PAUSE = 20.0  # seconds for which a daemon that hung is left alone: each touch costs the whole deadline
_REPLACED_AT_MOST = 3  # times while one reader opens an entry

# How arenas are reached: the kernel maps the daemon's memory through its files; the daemon passes its memory over a
# socket; they are read into private memory, since a page-cache mapping would not survive the daemon; or there is no
# daemon.
Way = Literal['passthrough', 'fd', 'read', 'directory']


def close(fd: int) -> None:
    """Close a file of the cache. A dead daemon answers with an error, and the descriptor is gone all the same."""
    with contextlib.suppress(OSError):
        os.close(fd)


@dataclass(slots=True)
class OpenEntry:
    """A published or staged entry, held open; the descriptors are the lease until the mappings have theirs."""

    manifest: Manifest
    structure: bytes
    arenas: list[int]
    owner: int
    access: Way = 'directory'
    leases: list[int] = field(default_factory=list)  # where the arenas' descriptors are none: files, or the folder
    folder: int = -1  # of a plain directory's entry
    store: Store | None = None  # which is there when the arenas are read, and may hang then

    def files(self) -> list[str]:
        """All that it consists of, in its folder."""
        return ['manifest', 'structure.pkl', *(os.path.join('tensors', a.name) for a in self.manifest.arenas)]

    def close(self) -> None:
        for fds in (self.arenas, self.leases):
            while fds:
                close(fds.pop())
        if self.folder >= 0:
            close(self.folder)
            self.folder = -1


@dataclass(slots=True)
class Lock:
    """``locks/<id>`` held exclusively."""

    fd: int

    def release(self) -> None:
        """Once; and not at all in a forked child, whose number may be that of another file by now."""
        if self.fd in _held:
            _held.discard(self.fd)
            # A child that no hook of Python saw, such as one of a C library, shares the open file.
            with contextlib.suppress(OSError):
                fcntl.flock(self.fd, fcntl.LOCK_UN)
            close(self.fd)
        self.fd = -1


# Held or waited for. A forked child must not keep its parent's locks alive.
_held: set[int] = set()


def adopt(fd: int) -> None:
    """An inherited lock stays held for as long as this process lives, and is not passed on."""
    os.set_inheritable(fd, False)
    _held.add(fd)


def _drop_locks_in_child() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_drop_locks_in_child)


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

        def look() -> OpenEntry | None:
            for name in self._names(id, trust):
                entry = self.open(f'pipelines/{name}', missing_ok=True)
                if entry is not None:
                    return entry
            return None

        entry = self.guard(look, late=close_entry)
        if entry is not None and entry.folder >= 0:
            # May take seconds, and no daemon can hang.
            try:
                directory.verify(entry.folder, id, entry.files())
            except BaseException as e:
                entry.close()
                if isinstance(e, OSError):
                    raise self.explain(e) from e
                raise
        return entry

    def _names(self, id: str, trust: Sequence[int]) -> list[str]:
        self._check_root()
        return list(dict.fromkeys(self.name(id, uid) for uid in (os.geteuid(), *trust)))

    def peek(self, id: str, trust: Sequence[int] = ()) -> tuple[Manifest, int] | None:
        """Manifest and owner of an entry that a load would find whole, or None. Takes no lease and counts as no hit."""

        def look() -> tuple[Manifest, int] | None:
            for name in self._names(id, trust):
                found = whole(name)
                if found is not None:
                    return found
            return None

        def whole(id: str) -> tuple[Manifest, int] | None:
            try:
                manifest, owner = self._manifest(f'pipelines/{id}')
            except FileNotFoundError:
                return None
            sizes = {'structure.pkl': manifest.structure_nbytes}
            sizes.update((os.path.join('tensors', a.name), a.nbytes) for a in manifest.arenas)
            try:
                for name, nbytes in sizes.items():
                    _check_size(name, os.stat(os.path.join(self.root, 'pipelines', id, name)).st_size, nbytes)
            except FileNotFoundError as e:
                raise CorruptEntry(f'{e.filename} is missing') from e
            return manifest, owner

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

    def _manifest(self, folder: str, at: int | None = None) -> tuple[Manifest, int]:
        path = os.path.join(self.root, folder, 'manifest')
        data, owner = _read(path) if at is None else _read('manifest', at)
        manifest = decode(data)
        if manifest.id != os.path.basename(folder):
            raise CorruptEntry(f'{path} is that of {manifest.id!r}')
        return manifest, owner

    def open(self, folder: str, missing_ok: bool) -> OpenEntry | None:
        """The entry in a folder of the root, without a deadline. Raises OSError beside what read raises."""
        self._check_root()
        base = os.path.join(self.root, folder)
        for _ in range(_REPLACED_AT_MOST):
            try:
                at = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                if missing_ok:
                    return None
                raise
            except NotADirectoryError as e:
                raise CorruptEntry(f'{base} is not a folder') from e
            try:
                return self._open_at(at, folder)
            except FileNotFoundError as e:
                # Evicted or replaced between two opens, or really incomplete?
                if not missing_ok or _is_still(base, at):
                    if missing_ok and e.filename == 'manifest':
                        return None
                    raise CorruptEntry(f'{os.path.join(base, str(e.filename))} is missing') from e
            except OSError as e:
                if e.errno in directory.WRONG_KIND:
                    raise CorruptEntry(f'{os.path.join(base, str(e.filename or ""))} is not a file') from e
                raise
            finally:
                close(at)
        return None

    def _open_at(self, at: int, folder: str) -> OpenEntry:
        """Every file through the folder's own descriptor, so that a replaced entry is never mixed with the new one."""
        if not self.is_mount:
            directory.hold(at)
        manifest, owner = self._manifest(folder, at)
        entry = OpenEntry(manifest, b'', [], owner, self.way, store=self)
        try:
            for a in manifest.arenas:
                fd = os.open(os.path.join('tensors', a.name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                entry.arenas.append(fd)
                _check_file(a.name, os.fstat(fd), a.nbytes)
            entry.structure, author = _read('structure.pkl', at)
            if author != owner:
                raise CorruptEntry(f'structure.pkl belongs to uid {author}, the manifest to uid {owner}')
            _check_size('structure.pkl', len(entry.structure), manifest.structure_nbytes)
            if self.way == 'fd':
                self._pass(entry, folder)
            if not self.is_mount:
                entry.folder = os.dup(at)
                entry.leases = [os.dup(at) for _ in entry.arenas]
        except BaseException:
            entry.close()
            raise
        return entry

    def _pass(self, entry: OpenEntry, folder: str) -> None:
        """Put the daemon's memory in the place of the arenas' files, which stay open as leases; where the socket fails,
        the files are read."""
        place, id = os.path.split(folder)
        memory: list[int] = []
        try:
            for a, handle in zip(entry.manifest.arenas, entry.arenas, strict=True):
                memory.append(self.memory('staging' if place == 'staging' else 'pipelines', id, a.name, handle))
                _check_size(a.name, os.fstat(memory[-1]).st_size, a.nbytes)
        except BaseException as e:
            for fd in memory:
                close(fd)
            if isinstance(e, (FileNotFoundError, CorruptEntry)) or not isinstance(e, (OSError, StoreError)):
                raise
            self.socket_failed(e)
            entry.access = 'read'
        else:
            entry.arenas, entry.leases = memory, entry.arenas

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
        try:
            with open(os.path.join(self.root, 'status.json'), 'rb') as f:
                status = json.load(f)
            self.is_mount = True
            self.way = self._best(*[bool(status.get(n, {}).get('active')) for n in ('passthrough', 'fd_passing')])
        except FileNotFoundError:
            if self.is_mount:
                # The folder below it is not a cache, and would be no place for a mount if it became one.
                raise StoreError(f'the daemon is gone; start it again: overmind-fs mount {self.root}') from None
            directory.prepare(self.root)
            self.way = 'read' if self.access == 'read' else 'directory'
        self._seen, self._owner = (root.st_dev, root.st_mtime_ns), root.st_uid

    def _best(self, passthrough: bool, passing: bool) -> Way:
        """Of the ways that the daemon offers, the best one that OVERMIND_ACCESS allows."""
        if passthrough and self.access in ('auto', 'map'):
            return 'passthrough'
        if passing and self.access in ('auto', 'fd'):
            return 'fd'
        return 'read'

    def guard(self, work: Callable[[], T], seconds: float = 0, late: Callable[[T], None] | None = None) -> T:
        left = self._hung_until - time.monotonic()
        if left > 0:
            raise StoreError(f'{self.root} did not answer; the daemon is tried again in {left:.0f} s')
        try:
            return guarded(self.root, seconds or self.deadline, work, late)
        except Hangs:
            self._hung_until = time.monotonic() + HANG_PAUSE
            raise
        except OSError as e:
            raise self.explain(e) from e

    def patiently(self, work: Callable[[], T], late: Callable[[T], None] | None = None) -> T:
        """work(), which may take long, as making room for gigabytes does, for as long as the daemon answers others."""
        answers = functools.partial(os.path.lexists, os.path.join(self.root, 'control'))
        try:
            return guarded(self.root, self.deadline, work, late, lambda: guarded(self.root, self.deadline, answers))
        except Hangs:
            self._hung_until = time.monotonic() + HANG_PAUSE
            raise

    def patiently_with(self, fd: int, work: Callable[[int], T]) -> T:
        """work(fd), patiently. It gets a descriptor of its own: in a daemon that hangs it may be left behind, and fd be
        another file by then."""
        own = os.dup(fd)

        def work_and_close() -> T:
            try:
                return work(own)
            finally:
                close(own)

        return self.patiently(work_and_close)

    def explain(self, e: OSError) -> StoreError:
        """What an error of a file operation means to a user, and what to do."""
        advice = {
            errno.ENOTCONN: f'the daemon is gone; start it again: overmind-fs mount {self.root}',
            errno.ECONNABORTED: f'the daemon is gone; start it again: overmind-fs mount {self.root}',
            errno.ENOSPC: 'no room in the cache; see overmind-fs status, and --max-bytes of overmind-fs mount',
            errno.EACCES: f'no permission; {self.root} belongs to another user',
            errno.EFBIG: 'a file of it is larger than this process or the daemon may write: ulimit -f unlimited',
            errno.EDQUOT: 'this user has too many fills under way',
            errno.EPERM: f'not permitted; this entry, or all of {self.root}, belongs to another user{within()}',
            errno.EINVAL: 'the cache refuses it; the log of overmind-fs says why',
            errno.ETXTBSY: 'it is still open for writing, here or in a child process',
            errno.EBUSY: 'it is still mapped for writing, here or in a child process',
        }
        if not self.is_mount:
            advice[errno.ENOSPC] = f'no room in the cache: the disk is full; overmind gc --max-bytes SIZE {self.root}'
        text = advice.get(e.errno or 0, f'{e.strerror or e}')
        return StoreError(f'{e.filename or self.root}: {text}')

    # ---- single flight

    def lock(self, id: str, seconds: float, tick: Callable[[], None]) -> Lock | None:
        """Wait for the lock of an id at most so many seconds, calling tick now and then; None when time is up."""

        def acquire() -> int:
            self._check_root()
            if not self.is_mount:
                directory.prepare(self.root)  # somebody may have emptied the folder since
            return self._open_lock(id)

        fd = self.guard(acquire, late=close)
        _held.add(fd)
        lock = Lock(fd)
        until, pause = time.monotonic() + seconds, 0.001
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if self.is_mount or self._is_named(lock.fd, id):
                        return lock
                    lock.release()  # gc has removed it while this one waited
                    lock = Lock(self.guard(acquire, late=close))
                    _held.add(lock.fd)
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
        _held.add(fd)
        return Lock(fd)

    # ---- filling

    def memory(self, place: Place, id: str, name: str, handle: int) -> int:
        """The memory of an arena whose file is open, over the daemon's socket."""
        from overmind.control.client import arena_fd  # with FlatBuffers, which passthrough does without

        # Half of the time for touching the mount, so that there is some left to go on without the socket.
        return arena_fd(self.root, place, id, name, os.fstat(handle).st_ino, self.deadline / 2)

    def socket_failed(self, e: Exception) -> None:
        text = (e.strerror if isinstance(e, OSError) else None) or str(e)
        warn_once(f'socket:{self.root}', f'{self.root}: arenas are copied instead of shared: {text}')


def close_entry(entry: OpenEntry | None) -> None:
    if entry is not None:
        entry.close()


def _check_size(name: str, nbytes: int, said: int) -> None:
    if nbytes != said:
        raise CorruptEntry(f'{name} has {nbytes} bytes, the manifest says {said}')


def _check_file(name: str, info: os.stat_result, said: int) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise CorruptEntry(f'{name} is not a file')
    _check_size(name, info.st_size, said)


def _is_still(folder: str, at: int) -> bool:
    """Whether the path leads to the folder that is open."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(at))
    except OSError:
        return False


def _read(path: str, at: int | None = None) -> tuple[bytes, int]:
    """Content and owner of a small file, in as few calls as that takes; at is the folder that path starts from."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        st = os.fstat(fd)
        if st.st_size > MAX_BLOB:
            raise CorruptEntry(f'{path} has {st.st_size} bytes, more than {MAX_BLOB}')
        parts, left = [], st.st_size
        while left > 0:
            part = os.read(fd, left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b''.join(parts), st.st_uid
    finally:
        close(fd)
