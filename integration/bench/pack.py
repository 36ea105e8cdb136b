"""``python -m integration.bench.pack SOURCE TARGET``: convert safetensors files for flashpack; prints the seconds."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from integration.bench.loads import pack


def main() -> None:
    start = time.perf_counter()
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
    print(json.dumps({'seconds': {'load': time.perf_counter() - start}}))


if __name__ == '__main__':
    main()
