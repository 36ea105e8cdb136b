"""What is restarted all day: load the pipeline, say so, and end. With ``--again``, once more for each line of input."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from integration.program import import_libraries, load, patch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('checkpoint', type=Path)
    parser.add_argument('--dtype', default='float16')
    parser.add_argument('--cache', action='store_true')
    parser.add_argument('--again', action='store_true')
    args = parser.parse_args()
    if args.cache:
        patch()
    import_libraries()
    import torch

    while True:
        load(args.checkpoint, getattr(torch, args.dtype))
        print('ready', flush=True)
        if not args.again or not sys.stdin.readline():
            break


if __name__ == '__main__':
    main()
