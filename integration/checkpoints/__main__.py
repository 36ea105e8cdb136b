"""``python -m integration.checkpoints --size true --kind fp16 DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path

from integration.checkpoints.build import KINDS, build
from integration.checkpoints.configs import SIZES


def main() -> None:
    parser = argparse.ArgumentParser(description='Build a checkpoint in DIR.')
    parser.add_argument('folder', metavar='DIR', type=Path)
    parser.add_argument('--size', choices=SIZES, default='true', help='true: gigabytes; tiny: the same graph')
    parser.add_argument('--kind', choices=KINDS, default='fp16')
    args = parser.parse_args()
    build(args.folder, args.size, args.kind)


if __name__ == '__main__':
    main()
