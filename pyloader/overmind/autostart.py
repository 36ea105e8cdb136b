"""Starts a daemon for this user when ``OVERMIND_AUTOSTART=1`` and no root is set."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from overmind.directory import MOUNT_TYPE
from overmind.errors import StoreError
from overmind.logs import logger
from overmind.private import why_not_private
from overmind.settings import Settings

LIMIT_SECONDS = 10.0  # for everything: waiting for another starter, starting, the first answer
_POLL_SECONDS = 0.02
_started: str | None = None


def ensure_root(settings: Settings) -> str | None:
    """OVERMIND_ROOT if it is set; else, with OVERMIND_AUTOSTART=1, the folder of a mounted daemon; else None.

    Raises StoreError if there should be a daemon and it cannot be started or does not answer. Of many processes that
    come at once, one starts it. A process that has succeeded once does not look again.
    """
    global _started
    if settings.root is not None or not settings.autostart:
        return settings.root
    if _started is None:
        folder = mount_folder()
        until = time.monotonic() + LIMIT_SECONDS
        if not _is_up(folder, settings.deadline_seconds):
            with _single_flight(folder + '.lock', until):
                if not _is_up(folder, settings.deadline_seconds):
                    _start(folder, settings.deadline_seconds, until)
        _started = folder
    return _started


def running_root(settings: Settings) -> str | None:
    """What ensure_root would give if it started nothing."""
    if settings.root is not None or not settings.autostart:
        return settings.root
    folder = _started or mount_folder()
    return folder if _is_up(folder, settings.deadline_seconds) else None


def mount_folder() -> str:
    """Where this user's daemon is mounted: below a private folder that the system made for the user, or else in the
    folder for temporary files. Made if it is not there; StoreError if it is not ours alone."""
    uid = os.geteuid()
    for base in (os.environ.get('XDG_RUNTIME_DIR', ''), f'/run/user/{uid}'):
        if os.path.isabs(base) and why_not_private(base) is None:
            return _private(os.path.join(os.path.realpath(base), 'overmind'))
    base = os.environ.get('TMPDIR', '')
    base = base if os.path.isabs(base) and os.path.isdir(base) else '/tmp'
    return _private(os.path.join(os.path.realpath(base), f'overmind-{uid}'))


def _private(folder: str) -> str:
    if mount_owner(folder) is not None:  # do not touch a mount here: its daemon may hang
        return folder
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as e:
        raise StoreError(f'{folder} cannot be made: {e.strerror}; set OVERMIND_ROOT, or TMPDIR') from e
    why = why_not_private(folder)
    if why is not None and mount_owner(folder) is None:  # or it was the root of a mount that has just come
        raise StoreError(f'{folder} is not used as a mount point, since it {why}; remove it or set OVERMIND_ROOT')
    return folder


def mount_owner(folder: str) -> int | None:
    """The uid that a mount of overmind-fs on the folder runs as, from the kernel's table; None if there is no such."""
    owner = None
    with open('/proc/self/mountinfo', encoding='utf-8', errors='surrogateescape') as table:
        for line in table:
            mount, _, source = line.partition(' - ')
            words, source_words = mount.split(' '), source.split()
            if len(words) < 6 or len(source_words) < 3 or _unescaped(words[4]) != folder:
                continue
            owner = None  # a later line lies above an earlier one
            if source_words[0] == MOUNT_TYPE:
                options = dict(option.partition('=')[::2] for option in source_words[2].split(','))
                owner = int(options.get('user_id', '-1'))
    return owner


def _unescaped(word: str) -> str:
    for code, character in (('\\040', ' '), ('\\011', '\t'), ('\\012', '\n'), ('\\134', '\\')):
        word = word.replace(code, character)
    return word


def _is_up(folder: str, deadline: float) -> bool:
    owner = mount_owner(folder)
    if owner is not None and owner != os.geteuid():
        raise StoreError(f'the mount on {folder} belongs to uid {owner}; unmount it or set OVERMIND_ROOT')
    return owner is not None and _answers(os.path.join(folder, 'status.json'), deadline)


def _answers(path: str, deadline: float) -> bool:
    """Whether a file of the mount can be read in time. A daemon that hangs keeps only a daemon thread."""
    readable: list[bool] = []

    def read() -> None:
        try:
            with open(path, 'rb') as f:
                readable.append(bool(f.read(1)))
        except OSError as e:
            logger.debug('%s cannot be read: %s', path, e)

    reader = threading.Thread(target=read, name='overmind-probe', daemon=True)
    reader.start()
    reader.join(deadline)
    return readable == [True]


@contextlib.contextmanager
def _single_flight(path: str, until: float) -> Iterator[None]:
    """Hold the lock of the starter. The kernel frees it when its holder dies."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise StoreError(f'the lock {path} cannot be opened: {e.strerror}') from e
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
            raise StoreError(f'the lock {path} is not a file of ours; remove it or set OVERMIND_ROOT')
        if not _wait(lambda: _locked(fd), until):
            raise StoreError(f'another process has held {path} for {LIMIT_SECONDS:g} s to start overmind-fs')
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(ready: Callable[[], bool], until: float) -> bool:
    while not ready():
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _start(folder: str, deadline: float, until: float) -> None:
    program = shutil.which('overmind-fs')
    if program is None:
        raise StoreError('overmind-fs is not on PATH; run "make install" in its sources, or set OVERMIND_ROOT')
    logger.info('starting %s on %s', program, folder)
    # Its output goes to a file: a pipe would stay open in the daemon, and reading it to the end would never return.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                [program, 'mount', '--background', folder],
                cwd='/',
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        except OSError as e:
            raise StoreError(f'{program} cannot be run: {e.strerror}') from e
        try:
            code: int | None = process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # a session of its own, so all of this group is ours
            process.wait()
            code = None
        output.seek(0)
        said = output.read()[-2000:].decode(errors='replace').strip()
    if code is None:
        raise StoreError(f'"{program} mount --background {folder}" took more than {LIMIT_SECONDS:g} s: {said}')
    if code != 0:
        raise StoreError(f'"{program} mount --background {folder}" failed with {code}: {said}')
    if not _wait(lambda: _is_up(folder, deadline), until):
        raise StoreError(f'{program} was started on {folder}, but does not answer: {said}')
