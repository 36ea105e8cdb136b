"""Calls back when a module has been imported; wrapt's post-import hooks, with a way to take them back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType

from overmind.logs import logger


class ImportWatch:
    """Tells of modules as they are imported. wrapt keeps a hook until it fires; a stopped watch ignores it then."""

    def __init__(self, callback: Callable[[ModuleType, bool], None]) -> None:
        self._callback = callback
        self._names: frozenset[str] = frozenset()
        self._waiting: set[str] = set()
        self._unfinished: frozenset[str] = frozenset()

    def start(self, names: Iterable[str]) -> None:
        """Call back for each of these modules: now if it is there, otherwise when it is imported.

        The second argument of the callback tells the two apart: True after an import.
        """
        from wrapt.importer import register_post_import_hook

        self._names |= frozenset(names)
        for name in self._names:
            module = sys.modules.get(name)
            if module is not None:
                self._call(name, executed=False)
                if initializing(module):
                    self._unfinished |= {name}
            elif name not in self._waiting:
                self._waiting.add(name)
                register_post_import_hook(self._imported, name)

    def stop(self) -> None:
        """No more calls, also from imports that are under way."""
        self._names = self._unfinished = frozenset()

    def _imported(self, module: ModuleType) -> None:
        name = module.__name__
        self._waiting.discard(name)
        self._call(name, executed=True)
        for other in self._unfinished:
            if not initializing(sys.modules.get(other)):
                self._unfinished -= {other}
                self._call(other, executed=True)

    def _call(self, name: str, executed: bool) -> None:
        # Not the module that wrapt hands over: it may have replaced itself in sys.modules, as transformers does.
        module = sys.modules.get(name)
        if name not in self._names or module is None:
            return
        try:
            self._callback(module, executed)
        except Exception:
            logger.warning('%s was imported, but its loading functions could not be patched', name, exc_info=True)


def initializing(module: ModuleType | None) -> bool:
    """Whether a module is still being imported."""
    return bool(getattr(getattr(module, '__spec__', None), '_initializing', False))
