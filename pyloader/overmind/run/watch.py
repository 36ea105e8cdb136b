"""The files that a warm parent is made of: of its modules, and all that were read while they were imported."""

from __future__ import annotations

import os
import sys

_Look = tuple[int, int, int] | None
_NOT_FILES = ('/proc/', '/sys/', '/dev/')


class Reads:
    """The paths that Python code opens or lists, from start() to stop(). An audit hook cannot be taken back."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self._on = False

    def start(self) -> None:
        self._on = True
        sys.addaudithook(self._hook)

    def stop(self) -> None:
        self._on = False

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if not self._on or event not in ('open', 'os.listdir', 'os.scandir'):
            return
        path = args[0]
        if event == 'open' and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
            return
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if isinstance(path, str):
            self.paths.add(os.path.join(os.getcwd(), path) if not path.startswith('/') else path)


class Watch:
    """How each file looked when it was taken up."""

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}

    def __len__(self) -> int:
        return len(self._looks)

    def add(self, path: str) -> None:
        if not path.startswith(_NOT_FILES) and path not in self._looks:
            self._looks[path] = _look(path)

    def changed(self) -> str | None:
        """A file that looks different now; None if there is none."""
        for path, look in self._looks.items():
            if _look(path) != look:
                return path
        return None


def _look(path: str) -> _Look:
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino


def made_of(reads: Reads, own: tuple[str, ...], sites: list[str]) -> Watch:
    """What this process consists of. ``own`` are folders of the user's code and of our state, which no parent keeps."""
    watch = Watch()
    for folder in sites:
        watch.add(folder)
        for name in _names(folder):
            if name.endswith('.pth'):
                watch.add(os.path.join(folder, name))
    watch.add(os.path.join(sys.prefix, 'pyvenv.cfg'))
    for module in list(sys.modules.values()):
        for path in (getattr(module, '__file__', None), getattr(getattr(module, '__spec__', None), 'origin', None)):
            if isinstance(path, str) and path.startswith('/'):
                watch.add(path)
    with open('/proc/self/maps', encoding='utf-8', errors='surrogateescape') as file:
        for line in file:
            path = line.rstrip('\n').partition('/')[2]
            if path and not path.endswith(' (deleted)'):
                watch.add('/' + path)
    for path in reads.paths:
        metadata = '.dist-info/' in path or '.egg-info/' in path
        if metadata or (not path.startswith(own) and '/__pycache__/' not in path):
            watch.add(path)
    return watch


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
