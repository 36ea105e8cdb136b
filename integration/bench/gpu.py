"""``python -m integration.bench.gpu``: a cached pipeline to a GPU by every OVERMIND_PIN, and plain copies of its size.

Ends with 77 where there is no GPU. Not yet run on one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from overmind.settings import Pin

from integration.checkpoints import build
from integration.checkpoints.configs import SIZES
from integration.harness.daemon import Daemon
from integration.harness.places import checkpoint_folder, work_folder
from integration.harness.progress import progress
from integration.harness.runs import RunError, environment, run_line
from integration.harness.table import megabytes, table

NO_GPU = 77
PINS: tuple[str, ...] = get_args(Pin)
COPIES = ('pageable', 'pinned')

Runs = dict[str, list[dict[str, Any]]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m integration.bench.gpu', description=__doc__)
    parser.add_argument('--repeat', type=int, default=5, metavar='N', help='processes for each way (default 5)')
    parser.add_argument('--size', choices=SIZES, default='true')
    parser.add_argument('--directory', action='store_true', help='a plain directory in /dev/shm in place of a mount')
    parser.add_argument('--device', default='cuda:0', help='default cuda:0; cpu tries the benchmark itself')
    default = work_folder() / 'results' / 'gpu.json'
    parser.add_argument('-o', '--output', type=Path, default=default, metavar='FILE', help=f'default {default}')
    return parser.parse_args()


def gpu(device: str) -> str | None:
    """Its name, or None."""
    import torch

    if device == 'cpu':
        return 'cpu'
    return torch.cuda.get_device_name(device) if torch.cuda.is_available() else None


@contextmanager
def cache(directory: bool) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix='overmind-gpu-', dir='/dev/shm' if directory else None) as folder:
        root = Path(folder) / 'cache'
        if directory:
            root.mkdir()
            yield root
        else:
            with Daemon(root) as daemon:
                yield daemon.root


def _subject(env: dict[str, str], *options: str | Path) -> dict[str, Any]:
    """With the GPUs that this process sees; other programs under test see none."""
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    env = {name: value for name, value in env.items() if name != 'CUDA_VISIBLE_DEVICES'}
    env |= {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible}
    return run_line([sys.executable, '-m', 'integration.bench.gpu_subject', *map(str, options)], env, 600)


def checked(pin: str, device: str, result: dict[str, Any]) -> dict[str, Any]:
    """All of it came from the cache, and all of it went to the device."""
    outcomes = {load['outcome'] for load in result['stats']['loads']}
    if outcomes != {'hit'} or result['devices'] != [device.partition(':')[0]]:
        raise RunError(f'{pin}: expected hits that go to {device}, got {outcomes} on {result["devices"]}')
    return result


def measure(root: Path, checkpoint: Path, repeat: int, device: str) -> Runs:
    """Fill once; then, in turn, a process for each setting and for each plain copy."""
    plain = environment(root, OVERMIND_STRICT='1')
    with progress('fill'):
        # As the others are run: the GPUs that a process sees are part of the key.
        _subject(plain, 'cpu', '--pipeline', checkpoint)
    runs: Runs = {way: [] for way in (*PINS, *COPIES)}
    for number in range(repeat):
        for way in runs:
            with progress(f'{way}: process {number + 1} of {repeat}'):
                if way in PINS:
                    env = {**plain, 'OVERMIND_PIN': way}
                    runs[way].append(checked(way, device, _subject(env, device, '--pipeline', checkpoint)))
                else:
                    nbytes = runs['off'][0]['bytes']
                    runs[way].append(_subject(plain, device, f'--{way}', str(nbytes)))
    return runs


def speeds(runs: Runs, way: str) -> list[float]:
    """GB/s."""
    return [one['bytes'] / one['seconds'] / 1e9 for one in runs[way]]


def as_table(runs: Runs) -> str:
    pinned = statistics.median(speeds(runs, 'pinned'))
    rows = []
    for way in runs:
        found = speeds(runs, way)
        middle = statistics.median(found)
        private = statistics.median(one['private'] for one in runs[way]) if way in PINS else None
        name = f'OVERMIND_PIN={way}' if way in PINS else f'one {way} copy'
        rows.append(
            [
                name,
                f'{middle:.2f} ({min(found):.2f} - {max(found):.2f})',
                f'{middle / pinned:.0%}',
                '' if private is None else megabytes(private),
            ]
        )
    return table(['median (least - most)', 'GB/s', 'of pinned', 'private memory'], rows)


def complaints(runs: Runs) -> list[str]:
    """What the loader said of OVERMIND_PIN: then the figure is that of another way."""
    lines = [line for way in PINS for one in runs[way] for line in one['stderr'].splitlines()]
    return list(dict.fromkeys(line for line in lines if 'OVERMIND_PIN' in line))


def different(runs: Runs) -> list[str]:
    """The settings by which other weights arrive than without."""
    wanted = runs['off'][0]['weights']
    return [pin for pin in PINS if any(one['weights'] != wanted for one in runs[pin])]


def main() -> int:
    args = arguments()
    name = gpu(args.device)
    if name is None:
        print('no GPU: torch finds no CUDA device, and nothing was measured')
        return NO_GPU
    with progress('the checkpoint (made once)'):
        checkpoint = build(checkpoint_folder(args.size, 'fp16'), args.size, 'fp16')
    with cache(args.directory) as root:
        runs = measure(root, checkpoint, args.repeat, args.device)
    print(f'\n{name}, {megabytes(runs["off"][0]["bytes"])}\n\n{as_table(runs)}\n')
    for line in complaints(runs):
        print(line)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps({'device': name, 'size': args.size, 'runs': runs}, indent=1))
    print(f'written: {args.output}')
    wrong = different(runs)
    if wrong:
        print(f'OTHER WEIGHTS than with OVERMIND_PIN=off: {", ".join(wrong)}')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
