"""Modules that a fresh process could not import by name: where their files are, and importing them from there."""

from __future__ import annotations

import importlib.util
import os
import sys
import types

from overmind.errors import CorruptEntry
from overmind.key.origin import MAIN, is_first_party


def import_from(name: str, path: str) -> None:
    """Make the module importable from its file, its parents as bare packages over the folders above it."""
    if name in sys.modules:
        return
    if not os.path.isfile(path):
        raise CorruptEntry(f'the module {name} was loaded from {path}, which is gone')
    folder = os.path.dirname(path)
    is_package = os.path.basename(path) == '__init__.py'
    up = os.path.dirname(folder) if is_package else folder
    parts = name.split('.')
    for i in range(len(parts) - 1, 0, -1):
        parent = '.'.join(parts[:i])
        if parent not in sys.modules:
            package = types.ModuleType(parent)
            package.__path__ = [up]
            sys.modules[parent] = package
        up = os.path.dirname(up)
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[folder] if is_package else None
    )
    if spec is None or spec.loader is None:
        raise CorruptEntry(f'the module {name} cannot be imported from {path}')
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def file_of(name: str) -> str | None:
    """The source file of a loaded module that is neither of the standard library nor installed, else None."""
    module = sys.modules.get(name)
    path = getattr(module, '__file__', None)
    if module is None or not path or name in MAIN:
        return None
    return os.path.realpath(path) if is_first_party(module) else None
