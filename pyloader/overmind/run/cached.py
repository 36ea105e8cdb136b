"""The modules that cached pipelines need, for programs that use the cache."""

from __future__ import annotations

import marshal
import os
import select
import signal
import sys
from importlib.machinery import PathFinder
from typing import Any

from overmind.run.learnt import site_folders

_LOADER = 'overmind.api'
_MOST_ENTRIES = 16
_SECONDS = 10


def needed(learnt: dict[str, str | None]) -> list[str]:
    """Installed modules of the newest pipelines' classes and loaders, where a program has used the cache.

    They are looked up by a process of their own, which leaves nothing behind here and may hang as a mount may.
    """
    if _LOADER not in learnt or not (os.environ.get('OVERMIND_ROOT') or os.environ.get('OVERMIND_AUTOSTART')):
        return []
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writable, marshal.dumps(_look()))
        finally:
            os._exit(0)
    os.close(writable)
    data = os.read(readable, 1 << 16) if select.select([readable], [], [], _SECONDS)[0] else b''
    os.close(readable)
    os.kill(pid, signal.SIGKILL)
    if data:  # else it may hang in a mount, where no signal reaches it
        os.waitpid(pid, 0)
    found: list[str] = marshal.loads(data) if data else []
    return [name for name in found if name not in learnt]


def _look() -> list[str]:
    from overmind import settings
    from overmind.autostart import running_root
    from overmind.store import Store

    now = settings.current()
    root = None if now.disabled else running_root(now)
    if root is None:
        return []
    names: dict[str, None] = {}
    for manifest, owner in Store(root, now.deadline_seconds).newest(_MOST_ENTRIES):
        if owner in now.trust:
            for qualified in (manifest.loader, manifest.class_name):
                name = _module(qualified)
                if name is not None and len(name) < 1000:
                    names[name] = None
    return list(names)


def _module(qualified: str) -> str | None:
    """The installed module that a class or a function of this name is in; nothing is imported for that."""
    found: list[str] = []
    folders = site_folders(sys.path)
    for part in qualified.split('.'):
        spec: Any = PathFinder.find_spec('.'.join([*found, part]), folders)
        if spec is None or not (spec.origin or '').endswith('.py'):
            break
        found.append(part)
        folders = list(spec.submodule_search_locations or ())
        if not folders:
            break
    return '.'.join(found) or None
