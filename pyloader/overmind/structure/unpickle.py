"""structure.pkl to objects: the C unpickler, persistent ids answered from the prebuilt table."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

from overmind.structure.modules import import_from


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, lookup: Callable[[Any], Any], modules: dict[str, str]) -> None:
        super().__init__(io.BytesIO(data))
        self._modules = modules
        self.persistent_load = lookup  # type: ignore[method-assign]  # thousands of calls

    def find_class(self, module: str, name: str) -> Any:
        # What is imported and there already, as nearly all is: pickle's own way takes four times as long. Only what is
        # in the dict, so that no code of a module runs that pickle would not run.
        imported = sys.modules.get(module)
        if imported is not None and not getattr(getattr(imported, '__spec__', None), '_initializing', False):
            found = getattr(imported, '__dict__', {}).get(name)
            if found is not None:
                sys.audit('pickle.find_class', module, name)
                return found
        try:
            return super().find_class(module, name)
        except ModuleNotFoundError:
            if module not in self._modules:
                raise
        for known, path in self._modules.items():
            if known != module and module.startswith(known + '.'):
                import_from(known, path)
        import_from(module, self._modules[module])
        return super().find_class(module, name)


def loads(data: bytes, lookup: Callable[[Any], Any], modules: dict[str, str]) -> Any:
    """Rebuild the graph."""
    return _Unpickler(data, lookup, modules).load()
