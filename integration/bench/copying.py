"""``python -m integration.bench.copying BYTES``: what a plain copy between warm buffers takes, in seconds a byte."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from integration.harness.places import REPOSITORY
from integration.harness.runs import environment

_NBYTES = {'true': 1 << 30, 'tiny': 1 << 24}
_REPEAT = 5


def measure(size: str) -> float:
    """By a process of its own."""
    line = [sys.executable, '-m', 'integration.bench.copying', str(_NBYTES[size])]
    done = subprocess.run(line, env=environment(), cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    import numpy as np

    nbytes = int(sys.argv[1])
    source, target = np.ones(nbytes, dtype=np.uint8), np.zeros(nbytes, dtype=np.uint8)
    target.fill(2)
    took = []
    for _ in range(_REPEAT):
        start = time.perf_counter()
        np.copyto(target, source)
        took.append(time.perf_counter() - start)
    print(statistics.median(took) / nbytes)


if __name__ == '__main__':
    main()
