"""What the copies need of a device; all that touches CUDA is behind it."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Protocol

# cuda.h: for all contexts, and the device only reads. Without the second, pinning would copy every page that is shared.
_PORTABLE = 1
_READ_ONLY = 8


class Layer(Protocol):
    """One device, and a stream of its own to it. Tensors are of uint8, one-dimensional and contiguous."""

    def pinned(self, nbytes: int) -> Any:
        """Page-locked memory of the host."""

    def copy(self, target: Any, source: Any) -> None:
        """Queue a copy to the device. The source must stay as it is until a mark after it was waited for."""

    def mark(self) -> Any:
        """The end of what is queued now."""

    def wait(self, mark: Any) -> None:
        """Until what was queued before the mark is done."""

    def finish(self) -> None:
        """Until all is done; then every stream sees it."""

    def register(self, address: int, nbytes: int) -> str | None:
        """Page-lock memory that is there, without giving the device the right to write. Why not, or None."""

    def unregister(self, address: int) -> None:
        """The end of that."""


class Cuda:
    """The targets are there when it is made: their memory may be in use until what is queued before is done."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def pinned(self, nbytes: int) -> Any:
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device='cpu', pin_memory=True)

    def copy(self, target: Any, source: Any) -> None:
        with self._torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> Any:
        event = self._torch.cuda.Event()
        event.record(self._stream)
        return event

    def wait(self, mark: Any) -> None:
        mark.synchronize()

    def finish(self) -> None:
        self._stream.synchronize()

    def register(self, address: int, nbytes: int) -> str | None:
        driver = _driver()
        if driver is None:
            return 'libcuda.so.1 cannot be loaded'
        with self._torch.cuda.device(self._device):
            error: int = driver.cuMemHostRegister_v2(address, nbytes, _PORTABLE | _READ_ONLY)
        return None if error == 0 else _name(driver, error)

    def unregister(self, address: int) -> None:
        driver = _driver()
        if driver is not None:
            with self._torch.cuda.device(self._device):
                driver.cuMemHostUnregister(address)


@functools.cache
def _driver() -> Any:
    """The driver itself: an error of the runtime would stay behind, and torch would find it at its next kernel."""
    try:
        driver = ctypes.CDLL('libcuda.so.1')
    except OSError:
        return None
    driver.cuMemHostRegister_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    driver.cuMemHostUnregister.argtypes = [ctypes.c_void_p]
    driver.cuGetErrorName.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    return driver


def _name(driver: Any, error: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorName(error, ctypes.byref(text))
    return f'cuMemHostRegister: {text.value.decode() if text.value else error}'
