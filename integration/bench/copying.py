"""``python -m integration.bench.copying``: what a plain copy between warm buffers takes, in seconds a byte."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from integration.harness.places import REPOSITORY
from integration.harness.runs import environment

_NBYTES = 1 << 30
_REPEAT = 5


def measure() -> float:
    """By a process of its own."""
    line = [sys.executable, '-m', 'integration.bench.copying']
    done = subprocess.run(line, env=environment(), cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    import numpy as np

    source, target = np.ones(_NBYTES, dtype=np.uint8), np.zeros(_NBYTES, dtype=np.uint8)
    target.fill(2)
    took = []
    for _ in range(_REPEAT):
        start = time.perf_counter()
        np.copyto(target, source)
        took.append(time.perf_counter() - start)
    print(statistics.median(took) / _NBYTES)


if __name__ == '__main__':
    main()
