"""What may be imported in advance: installed modules, and nothing of the user's own code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Forbidden(BaseException):
    """Raised through an import in advance. Not an Exception, so that no library takes it for a missing module."""


class Guard:
    """Stands in front of ``sys.meta_path`` and asks the finders behind it."""

    def __init__(self, folders: tuple[str, ...], forbidden: dict[str, str]) -> None:
        self._folders = folders  # of the standard library and of installed distributions
        self._forbidden = forbidden
        self.missing: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, 'find_spec', None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                why = self._forbidden.get(name)
                if why is None and self._is_own(spec):
                    why = f'is no installed distribution ({spec.origin})'
                if why is not None:
                    spec.loader = _Refusing(f'needs {name}, which {why}')  # type: ignore[assignment]
                return spec
        self.missing.add(name)
        return None

    def _is_own(self, spec: ModuleSpec) -> bool:
        origin = spec.origin
        return (
            isinstance(origin, str)
            and origin.startswith('/')
            and not origin.startswith(self._folders)
            and spec.name.partition('.')[0] != 'overmind'
        )


class _Refusing:
    """Lets a library ask whether a module is there, but not run it."""

    def __init__(self, why: str) -> None:
        self._why = why

    def create_module(self, spec: ModuleSpec) -> Any:
        raise Forbidden(self._why)

    def exec_module(self, module: ModuleType) -> None:
        raise AssertionError(module)
