"""Keeps what was imported in advance out of sight until the program imports some of it.

Then is the time to see whether the program has done something before that its libraries would have taken notice of. If
it has, the process becomes plain Python, and the program starts again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from overmind.run.before import Before, difference
from overmind.run.learnt import site_folders
from overmind.run.shadow import first_entry, shadowed

if TYPE_CHECKING:
    from overmind.run.messages import Request
    from overmind.run.parent import Parent


def _hide(before: frozenset[str]) -> dict[str, ModuleType]:
    """Take the modules out of sys.modules that are neither Python's own, nor were there ``before``, nor ours."""
    names = [
        name
        for name in sys.modules
        if name not in before
        and name.partition('.')[0] not in sys.stdlib_module_names
        and name not in ('__main__', 'sitecustomize', 'usercustomize')
        and not name.startswith('overmind.run')
    ]
    if 'overmind.api' not in sys.modules:
        names = [name for name in names if name.partition('.')[0] != 'overmind']
    return {name: sys.modules.pop(name) for name in names}


class Curtain:
    """Stands in front of ``sys.meta_path``."""

    def __init__(self, parent: Parent, request: Request) -> None:
        self._parent = parent
        self._hidden = _hide(parent.before)
        self._request = request
        self._program = os.getpid()
        self._drawn = False
        self._folder = os.getcwd()
        first = first_entry(request.program, bool(getattr(sys.flags, 'safe_path', False)))
        self._path = frozenset([*sys.path, first])

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in self._hidden:
            if not self._drawn:
                self._draw(name)
            return _spec(name, self._hidden[name], self)
        if not self._hidden and path is None and _is_library(name):
            sys.meta_path.remove(self)
            with contextlib.suppress(OSError):
                self._note(difference(self._request.environment, os.environ))
        return None

    def _draw(self, name: str) -> None:
        if os.getpid() == self._program:
            why = self._why_not(name)
            if why is not None:
                self._start_again(why)
        self._drawn = True
        # All but the one asked for: the import system would load again what turns up in sys.modules meanwhile.
        module = self._hidden.pop(name)
        sys.modules.update(self._hidden)
        self._hidden = {name: module}

    def done(self) -> None:
        """The module that was asked for is in sys.modules."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _note(self, changes: Mapping[str, str | None]) -> None:
        Before(self._parent.launch.learnt).note(dict(changes))

    def _why_not(self, name: str) -> str | None:
        changes = difference(self._request.environment, os.environ)
        if changes != self._parent.changes:
            with contextlib.suppress(OSError):
                self._note(changes)
            differs = [
                n
                for n in {**changes, **self._parent.changes}
                if n not in changes or n not in self._parent.changes or changes[n] != self._parent.changes[n]
            ]
            return f'it sets {", ".join(differs)} otherwise than before when it imports {name}'
        for known in self._hidden:
            if known in sys.modules:
                return f'it puts a module {known} of its own into sys.modules'
        libraries = site_folders(sys.path)
        last = max((sys.path.index(folder) for folder in libraries), default=0)
        preloaded = self._parent.preloaded
        for at, entry in enumerate(sys.path):
            if isinstance(entry, str) and entry not in self._path:
                loaded = preloaded.loaded if at < last else frozenset[str]()
                why = shadowed([os.path.abspath(entry)], loaded, preloaded.missing)
                if why is not None:
                    return why
        return None

    def _start_again(self, why: str) -> NoReturn:
        request = self._request
        with contextlib.suppress(OSError):
            os.write(2, f'overmind run: starts again as plain python: {why}\n'.encode(errors='replace'))
        os.chdir(self._folder)
        for number in signal.valid_signals():
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_IGN if number in request.ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
        python = self._parent.launch.python
        os.execve(python, [python, *request.options, *request.program, *request.arguments], request.environment)


def _is_library(name: str) -> bool:
    if name.partition('.')[0] in sys.stdlib_module_names:
        return False
    spec = PathFinder.find_spec(name)
    folders = tuple(os.path.join(path, '') for path in site_folders(sys.path))
    return name == 'overmind' or (spec is not None and (spec.origin or '').startswith(folders))


def _spec(name: str, module: ModuleType, curtain: Curtain) -> ModuleSpec:
    """One that brings a module which is there already."""
    real = module.__spec__
    spec = ModuleSpec(name, None, origin=getattr(real, 'origin', None))
    spec.loader = _Present(module, getattr(real, 'loader', None), curtain)  # type: ignore[assignment]
    if real is not None:
        spec.submodule_search_locations = real.submodule_search_locations
        spec.has_location = real.has_location
        spec.cached = real.cached
    return spec


class _Present:
    def __init__(self, module: ModuleType, loader: Any, curtain: Curtain) -> None:
        self._module, self._spec, self._loader, self._curtain = module, module.__spec__, loader, curtain

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self._curtain.done()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
