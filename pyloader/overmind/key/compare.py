"""The inputs of a load as they are recorded, and whether they are still the same."""

from __future__ import annotations

import hashlib
import os
import stat as stats
from collections.abc import Iterable
from typing import NamedTuple

from overmind.key import unaudited

# The working directory, as a Listing: recorded where a relative path was opened that no argument covers.
WORKING_DIRECTORY = '.'
# With a name after it, as a Listing: an environment variable that the program read.
VARIABLE = 'environment variable '
# The inode of a file that was looked for and not found; no file has this one.
ABSENT = 0


class Source(NamedTuple):
    """A file that the load read, as it was then."""

    path: str
    nbytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class Listing(NamedTuple):
    """The names in a folder that the load looked into; or what else a digest says all about."""

    path: str
    digest: str


def check(sources: Iterable[Source], listings: Iterable[Listing]) -> str | None:
    """The first difference between the recorded inputs and what is there now, in words, or None."""
    stat = unaudited.stat
    for source in sources:
        try:
            s = stat(source.path)
        except OSError as e:
            if source.inode == ABSENT:
                continue
            return f'{source.path}: {e.strerror}'
        if source.inode == ABSENT:
            return f'{source.path}: it was not there'
        if (
            s.st_ctime_ns != source.ctime_ns
            or s.st_size != source.nbytes
            or s.st_ino != source.inode
            or s.st_mtime_ns != source.mtime_ns
        ):
            return f'{source.path}: modified'
    for listing in listings:
        try:
            now = digest(listing.path)
        except OSError as e:
            return f'{listing.path}: {e.strerror}'
        if now != listing.digest:
            return _different(listing.path)
    return None


def _different(path: str) -> str:
    if path == WORKING_DIRECTORY:
        return 'working directory: another one'
    return f'{path}: another value' if path.startswith(VARIABLE) else f'{path}: files came or went'


def digest(path: str) -> str:
    """That of a Listing, now."""
    if path == WORKING_DIRECTORY:
        return of_names([os.getcwd()])
    if path.startswith(VARIABLE):
        value = os.environ.get(path.removeprefix(VARIABLE))
        return of_names([] if value is None else ['set', value])
    return of_names(names(os.listdir(path)))


def names(found: Iterable[str]) -> list[str]:
    return sorted(name for name in found if name != '__pycache__')


def of_names(found: Iterable[str]) -> str:
    return hashlib.sha256(b'\0'.join(map(os.fsencode, found))).hexdigest()


def look(path: str) -> Source | None:
    """A file as it is now; None for what is not there or no regular file."""
    try:
        s = unaudited.stat(path)
    except (OSError, ValueError):
        return None
    if not stats.S_ISREG(s.st_mode):
        return None
    return Source(path, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino)
