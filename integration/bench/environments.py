"""The Python environments, one for each set of libraries: ``make bench-env`` installs those that are not ``.venv``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from integration.harness.places import REPOSITORY
from integration.harness.runs import environment


def _venvs() -> Path:
    return Path(os.environ.get('OVERMIND_VENVS') or Path.home() / '.cache' / 'overmind-fs' / 'venvs')


@dataclass(frozen=True)
class Environment:
    """An interpreter, and whether the product is installed for it."""

    name: str
    python: Path
    has_product: bool

    def variables(self, root: Path | None = None) -> dict[str, str]:
        """For a process in it; with a root, one that uses the cache and fails when that fails."""
        variables = environment(root, OVERMIND_STRICT='1') if root else environment()
        if not self.has_product:
            # overmind-cache has the same import name as the product, which may be on this path.
            variables['PYTHONPATH'] = str(REPOSITORY)
        return {**variables, 'PATH': f'{self.python.parent}{os.pathsep}{variables["PATH"]}'}

    def missing(self) -> str:
        """Why it cannot be used, if so."""
        return '' if self.python.exists() else f'{self.python} does not exist: run `make bench-env`'


CURRENT = Environment('transformers 5', Path(sys.executable), True)
OLDER = Environment('transformers 4.57', _venvs() / 'older' / 'bin' / 'python', True)
OVERMIND_CACHE = Environment('transformers 4.57', _venvs() / 'overmind-cache' / 'bin' / 'python', False)
TENSORS = Environment('torch', _venvs() / 'bench' / 'bin' / 'python', False)
