"""Puts the cache under the loading functions of other libraries, and takes it away again.

Nothing is patched by importing this package, and no patched library is imported by it: a module that is not there yet
is patched at the moment it has been imported.
"""

from __future__ import annotations

from overmind.patches.engine import monkey_patch_all, unpatch_all
from overmind.patches.wrapper import unwrapped

__all__ = ['monkey_patch_all', 'unpatch_all', 'unwrapped']
