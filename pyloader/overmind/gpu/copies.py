"""Many copies from the host to one GPU, by the way that OVERMIND_PIN names."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Sequence
from typing import Any

from overmind.gpu import register
from overmind.gpu.layer import Cuda, Layer
from overmind.gpu.pool import Pool
from overmind.logs import logger, warn_once
from overmind.settings import Pin

_pool = Pool()
# Tried, never waited for: a child that was forked meanwhile would wait for ever.
_one = threading.Lock()


def copy_all(torch: Any, pin: Pin, device: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
    """Every source into its target, bytes into bytes, all of it done at the return. Raises what a plain copy raises."""
    if not pairs:
        return
    if not _one.acquire(blocking=False):
        _plainly(pairs)
        return
    start = time.perf_counter()
    layer: Layer | None = None
    try:
        layer = Cuda(torch, device)
        if pin == 'pool':
            _pool.copy(layer, pairs)
        else:
            register.copy(layer, pairs)
    except BaseException as e:
        if layer is not None:
            # What is under way would meet the copies that follow, or whoever gets the memory of the targets next.
            with contextlib.suppress(Exception):
                layer.finish()
        if not isinstance(e, Exception):
            raise
        warn_once(f'pin:{pin}', f'OVERMIND_PIN={pin}: {type(e).__name__}: {e}; copies to the GPU are not pinned')
        _plainly(pairs)
    finally:
        _one.release()
    nbytes, seconds = sum(len(source) for _, source in pairs), time.perf_counter() - start
    logger.debug('%s: %d bytes to %s, %.2f GB/s', pin, nbytes, device, nbytes / seconds / 1e9)


def copy_storages(torch: Any, pin: Pin, device: str, pairs: Sequence[tuple[Any, Any]]) -> None:
    windows = [tuple(as_bytes(torch, storage, 0, len(storage)) for storage in pair) for pair in pairs]
    copy_all(torch, pin, torch.device(device), [(target, source) for target, source in windows])


def _plainly(pairs: Sequence[tuple[Any, Any]]) -> None:
    for target, source in pairs:
        target.copy_(source)


def as_bytes(torch: Any, storage: Any, offset: int, nbytes: int) -> Any:
    """A window of a storage as a tensor of bytes."""
    return _new_on(torch, storage.device)().set_(storage, offset, (nbytes,), (1,))


@functools.cache
def _new_on(torch: Any, device: Any) -> Any:
    """Makes an empty tensor of bytes, without the dispatch of a factory call."""
    return torch.empty(0, dtype=torch.uint8, device=device).new
