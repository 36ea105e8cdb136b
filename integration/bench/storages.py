"""A file for each storage against a file for each component: ``python -m integration.bench.storages ROOT``.

It runs in a process of its own, since it maps files of a mount.
"""

from __future__ import annotations

import json
import mmap
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from integration.harness.runs import environment

_REPEAT = 5


def _map_all(paths: Sequence[Path]) -> float:
    """Seconds to open and map them all, and to read the first byte of each mapping."""
    with ExitStack() as stack:
        start = time.perf_counter()
        for path in paths:
            file = stack.enter_context(path.open('rb', buffering=0))
            mapped = stack.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            mapped[0]
        return time.perf_counter() - start


def _files(root: Path, folder: str) -> list[Path]:
    found = [path for entry in sorted((root / 'pipelines').iterdir()) for path in sorted((entry / folder).iterdir())]
    return [path for path in found if path.stat().st_size]


def measure(root: Path) -> dict[str, Any]:
    """Both ways, by a child."""
    line = [sys.executable, '-m', 'integration.bench.storages', str(root)]
    done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=300, env=environment())
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> None:
    figures = {}
    for folder in ('storages', 'tensors'):
        paths = _files(Path(sys.argv[1]), folder)
        figures[folder] = {'files': len(paths), 'seconds': statistics.median(_map_all(paths) for _ in range(_REPEAT))}
    print(json.dumps(figures))


if __name__ == '__main__':
    main()
