"""The list of what a program imported: a line for each module, in the order in which their imports were done.

A module that is not to be imported in advance has the reason behind a tab.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterable

_PLAIN_LOADERS = ('SourceFileLoader', 'SourcelessFileLoader', 'ExtensionFileLoader')
_OWN = 'overmind'  # also where it is installed as editable: what is true of it is known here


class Learnt:
    """Modules by name; None, or why one is not imported in advance."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.modules: dict[str, str | None] = {}

    @staticmethod
    def read(path: str) -> Learnt:
        learnt = Learnt(path)
        try:
            with open(path, encoding='utf-8') as file:
                learnt._take(file.read())
        except FileNotFoundError:
            pass
        return learnt

    def _take(self, text: str) -> None:
        for line in text.splitlines():
            name, _, why = line.partition('\t')
            if why or name not in self.modules:
                self.modules[name] = why or None

    @property
    def wanted(self) -> list[str]:
        return [name for name, why in self.modules.items() if why is None]

    def add(self, modules: dict[str, str | None]) -> list[str]:
        """Keep more, on the disk too; the names to import in advance that were not known."""
        folder = os.path.dirname(self.path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(os.path.join(folder, 'lock'), 'a') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            now = Learnt.read(self.path)
            known = set(now.modules)
            now._take(as_text(modules))
            self.modules = now.modules
            with open(self.path + '.new', 'w', encoding='utf-8') as file:
                file.write(as_text(self.modules))
            os.replace(self.path + '.new', self.path)
        return [name for name, why in modules.items() if why is None and name not in known]


def as_text(modules: dict[str, str | None]) -> str:
    return ''.join(f'{name}\t{why}\n' if why else f'{name}\n' for name, why in modules.items())


def site_folders(paths: Iterable[str]) -> list[str]:
    """Those of the entries of ``sys.path`` that installers write to."""
    return [path for path in paths if os.path.basename(path) in ('site-packages', 'dist-packages')]


def third_party(known: frozenset[str]) -> dict[str, str | None]:
    """The modules of this process that come from installed distributions, but for those known."""
    folders = tuple(os.path.join(path, '') for path in site_folders(sys.path))
    found: dict[str, str | None] = {}
    for name, module in list(sys.modules.items()):
        spec = getattr(module, '__spec__', None)
        origin = getattr(spec, 'origin', None)
        if name in known or getattr(spec, 'name', None) != name or not isinstance(origin, str):
            continue
        if name.startswith(f'{_OWN}.run'):
            continue
        if not origin.startswith(folders) and name.partition('.')[0] != _OWN:
            continue
        loader = type(getattr(spec, 'loader', None))
        plain = loader.__name__ in _PLAIN_LOADERS and 'importlib' in loader.__module__
        found[name] = None if plain else f'is imported in a way of its own, by {loader.__module__}.{loader.__name__}'
    return found
