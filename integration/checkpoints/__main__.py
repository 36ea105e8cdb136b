"""``python -m integration.checkpoints --size true --dtype fp16 DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path

from integration.checkpoints.build import DTYPES, build
from integration.checkpoints.configs import SIZES


def main() -> None:
    parser = argparse.ArgumentParser(description='Build Stable Diffusion 1.5 with two ControlNets in DIR.')
    parser.add_argument('folder', metavar='DIR', type=Path)
    parser.add_argument('--size', choices=SIZES, default='true', help='true: 1.8 billion weights; tiny: the same graph')
    parser.add_argument('--dtype', choices=DTYPES, default='fp16')
    args = parser.parse_args()
    build(args.folder, args.size, args.dtype)


if __name__ == '__main__':
    main()
