"""A plain directory as a cache, without a daemon (docs/plain-directory.md): what makes a folder one, whose hands may
have been in it, and how an entry survives a power failure or is found out not to have."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import stat
import zlib
from collections.abc import Iterable
from typing import Any

from overmind.errors import CorruptEntry, StoreError
from overmind.logs import logger
from overmind.settings import current
from overmind.users import unmapped

FORMAT = 1
TAG = 'CACHEDIR.TAG'
UNFINISHED_TAG = f'.{TAG}.'  # begins the name that the tag has first
FOLDERS = ('pipelines', 'staging', 'locks')
MOUNT_TYPE = 'fuse.overmind-fs'
MOUNT_POINT = 'user.overmind.mountpoint'  # set by the daemon on a folder before it is mounted there
WRITTEN = 'written.json'

_FORMAT_LINE = 'overmind-format: '
_TAG_TEXT = f"""\
Signature: 8a477f597d28d172789f06886806bc55
# A cache of overmind-fs without a daemon. It can be deleted whenever no program loads; "overmind gc" makes it smaller.
# Backups leave it out: https://bford.info/cachedir/
{_FORMAT_LINE}{FORMAT}
"""
_STEP = 1 << 20


def prepare(root: str) -> None:
    """Make an empty folder a cache. Raises StoreError for one that must not be used, OSError."""
    _check_owner(root, os.stat(root), stat.S_ISVTX)
    found = format_of(root)
    if found is None and not _begin(root):
        found = format_of(root)
        if found is None:
            raise StoreError(
                f'{root} is neither a mount of overmind-fs, nor a cache without a daemon, nor an empty folder; '
                f'mount there (overmind-fs mount {root}), or set OVERMIND_ROOT to a folder of its own'
            )
    if found not in (None, FORMAT):
        raise StoreError(
            f'{root} is a cache of format {found}, and this loader has format {FORMAT}; empty it or use another folder'
        )
    for name in FOLDERS:
        path = os.path.join(root, name)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        info = os.lstat(path)
        if not stat.S_ISDIR(info.st_mode):
            raise StoreError(f'{path} is in the way: it is not a folder')
        _check_owner(path, info)


def format_of(root: str) -> int | None:
    """The format that a cache says it has; None where there is no tag. Raises StoreError for a tag of somebody else."""
    path = os.path.join(root, TAG)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(fd, 'rb') as f:
        _check_owner(path, os.fstat(fd))
        text = f.read(4096).decode(errors='replace')
    words = [line[len(_FORMAT_LINE) :] for line in text.splitlines() if line.startswith(_FORMAT_LINE)]
    if not words or not words[0].isascii() or not words[0].isdigit():
        raise StoreError(f'{root} is not a cache of overmind-fs: {path} is that of another program')
    return int(words[0])


def status_of(root: str) -> dict[str, Any] | None:
    """What the daemon of a mount says of itself; None where there is no mount. Raises OSError."""
    try:
        with open(os.path.join(root, 'status.json'), 'rb') as f:
            if not _is_mounted(os.fstat(f.fileno()).st_dev):
                return None  # a file of that name, in a folder that nobody has looked at yet
            status = json.load(f)
            return status if isinstance(status, dict) else {}
    except FileNotFoundError:
        return None


def _is_mounted(device: int) -> bool:
    """Whether a device is a mount of the daemon. Where the kernel's table cannot be read, it is taken for one."""
    number = f'{os.major(device)}:{os.minor(device)}'
    try:
        with open('/proc/self/mountinfo', encoding='utf-8', errors='surrogateescape') as table:
            lines = [line.partition(' - ') for line in table]
    except OSError:
        return True
    return any(mount.split(' ')[2] == number and of.startswith(f'{MOUNT_TYPE} ') for mount, _, of in lines)


def _begin(root: str) -> bool:
    """Put the tag into an empty folder; False where the folder is not empty."""
    # What mkfs puts into a new file system is nobody's.
    if any(name != 'lost+found' and not name.startswith(UNFINISHED_TAG) for name in os.listdir(root)):
        return False
    with contextlib.suppress(OSError):  # there is no such attribute, or the file system has none
        os.getxattr(root, MOUNT_POINT)
        raise StoreError(
            f'{root} is the mount point of a daemon that is gone; start it again: overmind-fs mount {root} '
            '(where a container does not see its mount: bind the parent, with rslave propagation; '
            f'to use the folder without one: setfattr -x {MOUNT_POINT} {root})'
        )
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _put(TAG, _TAG_TEXT, 0o644, folder)
    except OSError as e:
        raise OSError(e.errno, e.strerror, os.path.join(root, TAG)) from e
    finally:
        os.close(folder)
    logger.info(
        '%s is an empty folder and no mount: the cache is kept in the folder itself, without a daemon and a budget; '
        '"overmind gc" removes what is old',
        root,
    )
    return True


def _check_owner(path: str, info: os.stat_result, allowed: int = 0) -> None:
    """Who may change a folder may have every reader unpickle something else. Root may anyway. With a mode bit allowed,
    that one makes up for being open to others: in a sticky folder, nobody removes or renames what is another's."""
    if unmapped(info.st_uid):
        raise StoreError(f'{path} belongs to a user who has no uid in this user namespace')
    if info.st_uid != 0 and info.st_uid not in current().trust:
        raise StoreError(f'{path} belongs to uid {info.st_uid}, whom OVERMIND_TRUST does not name')
    if info.st_mode & 0o022 and not info.st_mode & allowed:
        mode = stat.S_IMODE(info.st_mode)
        raise StoreError(f'{path} can be changed by other users (mode {mode:04o}); chmod go-w {path}')


# ---- reading


def verify(folder: int, name: str, files: Iterable[str]) -> None:
    """An entry that was not used since the machine started may lack what was written last before it stopped: compare
    all of its bytes with the checksums, once. Raises CorruptEntry, OSError."""
    try:
        with open(_open(WRITTEN, folder), 'rb') as f:
            record = json.load(f)
        before, sums = record['boot'], dict(record['crc32'])
    except FileNotFoundError:
        raise CorruptEntry(f'{name} has no {WRITTEN}') from None
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptEntry(f'{WRITTEN} of {name} cannot be read: {e}') from e
    now = boot_id()
    if before == now and now:
        return
    found = checksums(folder, files)
    for file, crc in found.items():
        if sums.get(file) != crc:
            raise CorruptEntry(f'{file} of {name} is not what was written: its checksum is another one')
    with contextlib.suppress(OSError):  # a cache on a read-only file system is compared each time
        _record(folder, found)


@functools.cache
def boot_id() -> str:
    """Another one after each start of the machine; '' where it is not known."""
    try:
        with open('/proc/sys/kernel/random/boot_id') as f:
            return f.read().strip()
    except OSError:
        return ''


def checksums(folder: int, files: Iterable[str]) -> dict[str, int]:
    from concurrent.futures import ThreadPoolExecutor

    names = list(files)
    try:
        with ThreadPoolExecutor(min(len(names), os.cpu_count() or 1)) as pool:
            found = list(pool.map(lambda name: _crc32(name, folder), names))
    except RuntimeError:  # no more threads, as when the program is at its end
        found = [_crc32(name, folder) for name in names]
    return dict(zip(names, found, strict=True))


def _crc32(name: str, folder: int) -> int:
    crc, buffer = 0, bytearray(_STEP)
    with open(_open(name, folder), 'rb', buffering=0) as f:
        while n := f.readinto(buffer):
            crc = zlib.crc32(memoryview(buffer)[:n], crc)
    return crc


def _open(name: str, folder: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


# ---- writing


def finish(path: str, files: Iterable[str]) -> None:
    """Files that nobody writes to any more, their checksums, and all of it on the disk. Raises OSError."""
    names = list(files)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _record(folder, checksums(folder, names))
        for name in [*names, WRITTEN, 'tensors', '.']:
            _sync(name, folder)
    finally:
        os.close(folder)


def _record(folder: int, sums: dict[str, int]) -> None:
    _put(WRITTEN, json.dumps({'boot': boot_id(), 'crc32': sums}), 0o444, folder)


def _put(name: str, text: str, mode: int, folder: int) -> None:
    """A file that is there whole, on the disk, or not at all. Raises OSError."""
    # Not the pid: processes of two containers, and two threads, have the same.
    beside = f'.{name}.{os.urandom(8).hex()}'
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        with open(fd, 'w') as f:
            f.write(text)
            f.flush()
            os.fsync(fd)
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:  # such as a full disk: the next load would leave one more
        with contextlib.suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise


def _sync(name: str, folder: int | None = None) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(root: str, id: str) -> None:
    """Rename ``staging/<id>``, whose lock the caller holds, to its place. An entry in its way goes aside first: killed
    in between, there is none. Raises OSError."""
    source, target, aside = paths = [os.path.join(root, p) for p in (f'staging/{id}', f'pipelines/{id}', aside_of(id))]
    try:
        os.rename(source, target)
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        set_aside(target, aside)
        os.rename(source, target)
    for folder in {os.path.dirname(p) for p in paths}:
        _sync(folder)


def aside_of(id: str) -> str:
    """Where an entry goes that is removed: no id begins with a dot."""
    return f'staging/.old-{id}'


def set_aside(entry: str, aside: str, source: int | None = None, target: int | None = None) -> None:
    """Take an entry out of its place, whole; it may be gone already. The numbers are folders that the paths start from.
    Raises OSError."""
    try:
        os.rename(entry, aside, src_dir_fd=source, dst_dir_fd=target)
    except FileNotFoundError:
        return
    except OSError as e:
        if e.errno != errno.EXDEV:
            raise
        # It is in a lower layer of an overlay, as what comes with the image of a container: no folder in it can be
        # renamed. Without a manifest there is no entry.
        remove(f'{entry}/manifest', source)
        remove(entry, source)


def remove(path: str, folder: int | None = None) -> None:
    """A file or a folder with all that is in it; leads nowhere else, whatever links are there. It may be gone already.
    Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(path, dir_fd=folder).st_mode):
            os.unlink(path, dir_fd=folder)
            return
        for _, folders, files, at in os.fwalk(path, topdown=False, dir_fd=folder):
            for name in files:
                os.unlink(name, dir_fd=at)
            for name in folders:
                if stat.S_ISLNK(os.lstat(name, dir_fd=at).st_mode):
                    os.unlink(name, dir_fd=at)
                else:
                    os.rmdir(name, dir_fd=at)
        os.rmdir(path, dir_fd=folder)
