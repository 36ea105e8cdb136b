"""Whose code a module or a file is: the user's own (first-party), or a library's, which its version identifies."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import weakref
from functools import lru_cache
from types import ModuleType

# Wherever this package itself is installed from, its code decides nothing about a result.
_OURS = frozenset({'overmind', 'overmind_cext'})
# multiprocessing gives the running script its second name in the processes that it spawns.
MAIN = frozenset({'__main__', '__mp_main__'})
_MARKS = ('/site-packages/', '/dist-packages/')
# By name, modules from a file of a library: a key asks for the same hundred again and again.
_libraries: dict[str, weakref.ref[ModuleType]] = {}


@lru_cache(maxsize=1)
def library_prefixes() -> tuple[str, ...]:
    """Real folders of the standard library and of installed distributions, each with a trailing slash."""
    found = {sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')}
    found.update(site.getsitepackages())
    found.add(site.getusersitepackages())
    found.add(os.path.dirname(os.__file__))
    return tuple(sorted({os.path.realpath(p) + '/' for p in found if p}))


@lru_cache(maxsize=4096)
def _folder_is_library(folder: str) -> bool:
    real = os.path.realpath(folder) + '/'
    return real.startswith(library_prefixes()) or any(mark in real for mark in _MARKS)


def is_library_file(path: str) -> bool:
    """Whether an absolute path lies in the standard library or in an installed distribution."""
    return _folder_is_library(os.path.dirname(path))


def common_name(module: str) -> str:
    """The name of a module that is the same in all processes of a program."""
    return '__main__' if module in MAIN else module


def is_first_party(module: str | ModuleType) -> bool:
    """Whether a module's code is the user's own. A name that is not loaded counts as the user's: made at run time."""
    name = module if isinstance(module, str) else module.__name__
    if name in MAIN:
        return True
    top = name.partition('.')[0]
    if top in _OURS or top in sys.stdlib_module_names:
        return False
    if isinstance(module, str):
        loaded = sys.modules.get(name)
        if loaded is None:
            return True
        known = _libraries.get(name)
        if known is not None and known() is loaded:
            return False
        module = loaded
    names = getattr(module, '__dict__', {})  # a module may make up what it is asked for
    path = names.get('__file__')
    if isinstance(path, str):
        own = not is_library_file(os.path.abspath(path))
        if not own and isinstance(module, ModuleType):
            _libraries[name] = weakref.ref(module)
        return own
    folders = list(names.get('__path__', ()))
    if folders:
        return not all(_folder_is_library(os.path.abspath(f)) for f in folders)
    if names.get('__spec__') is None:
        # torch.ops and torch.classes are module objects that a library made.
        parent = name.rpartition('.')[0]
        return not (parent and parent in sys.modules and not is_first_party(parent))
    return False
