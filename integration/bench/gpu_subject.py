"""``python -m integration.bench.gpu_subject``: one copy to a GPU, in a process of its own; one line of JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from integration import program

_REPEAT = 5  # of a plain copy


def _timed(device: str, work: Callable[[], Any]) -> float:
    """Seconds until the device is done."""
    import torch

    def synchronize() -> None:
        if device != 'cpu':
            torch.cuda.synchronize(device)

    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def _moved(checkpoint: Path, device: str) -> dict[str, Any]:
    """A cached pipeline: ``.to(device)``, and its weights on the way back."""
    program.patch()
    program.import_libraries()
    import torch

    torch.zeros(1, device=device)  # what CUDA does first is not the copy
    pipeline, _ = program.load(checkpoint, torch.float16)
    nbytes = sum(storage.nbytes() for storage in program.storages(pipeline).values())
    before = program.memory()
    seconds = _timed(device, lambda: pipeline.to(device))
    after = program.memory()
    devices = {str(t.device.type) for part in program.networks(pipeline).values() for t in part.state_dict().values()}
    pipeline.to('cpu')
    return {
        'seconds': seconds,
        'bytes': nbytes,
        'private': after['anonymous'] - before['anonymous'],
        'devices': sorted(devices),
        'weights': program.weights_digest(pipeline),
        'stats': program.counted(),
    }


def _copied(nbytes: int, device: str, pinned: bool) -> dict[str, Any]:
    """The same number of bytes from one piece of memory."""
    import torch

    source = torch.ones(nbytes, dtype=torch.uint8, pin_memory=pinned and device != 'cpu')
    target = torch.empty(nbytes, dtype=torch.uint8, device=device)
    target.zero_()
    seconds = statistics.median(_timed(device, lambda: target.copy_(source)) for _ in range(_REPEAT))
    return {'seconds': seconds, 'bytes': nbytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('device')
    parser.add_argument('--pipeline', type=Path)
    parser.add_argument('--pageable', type=int, metavar='BYTES')
    parser.add_argument('--pinned', type=int, metavar='BYTES')
    args = parser.parse_args()
    if args.pipeline:
        result = _moved(args.pipeline, args.device)
    else:
        result = _copied(args.pinned or args.pageable, args.device, bool(args.pinned))
    print(json.dumps(result))


if __name__ == '__main__':
    main()
