"""Turns a starting interpreter into a warm parent, and in each forked child lets the start go on.

Python imports ``sitecustomize`` at the end of its own start, right before it looks for the program. The parent stays in
this import for ever. A child leaves it, and what follows is Python's own way of running a program: the first entry of
``sys.path``, ``__main__``, tracebacks without a frame of ours, exit codes.
"""

from __future__ import annotations

import os
import sys


def _serve() -> bool:
    root, boot, launch = os.environ.pop('OVERMIND_RUN_BOOT').split('\n')
    sys.path.remove(boot)
    sys.path_importer_cache.pop(boot, None)
    del sys.modules['sitecustomize']
    before = frozenset(sys.modules)
    sys.path.insert(0, root)
    import overmind.run.parent

    sys.path.remove(root)
    return overmind.run.parent.serve(int(launch), before)


try:
    _customized = _serve()
except BaseException:  # the interpreter would go on and run the program
    sys.excepthook(*sys.exc_info())
    os._exit(1)
if not _customized:
    raise ImportError('there is no other', name='sitecustomize')
