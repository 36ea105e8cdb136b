"""Keeps CUDA out of a warm parent: a process that has asked for its devices cannot be forked.

Libraries ask for the number of devices when they are imported (diffusers does). During the imports a forked process
that ends at once answers; afterwards the real functions are back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

_DEVICES = ('/dev/nvidia', '/dev/kfd', '/dev/dri/', '/dev/accel')


class Devices:
    """Takes the place of torch's functions that count devices, once torch is imported."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []
        self._answers: dict[str, int] = {}
        self._active = True

    def cover(self) -> None:
        """Call after each import."""
        torch: Any = sys.modules.get('torch')
        if self._replaced or torch is None or not hasattr(torch, 'cuda'):
            return
        for owner, name in ((getattr(torch, '_C', None), '_cuda_getDeviceCount'), (torch.cuda, 'device_count')):
            real = getattr(owner, name, None)
            if real is not None:
                self._replaced.append((owner, name, real))
                setattr(owner, name, self._stand_in(name, real))

    def uncover(self) -> None:
        """The real functions again, also for those that have imported a stand-in by name."""
        self._active = False
        for owner, name, real in self._replaced:
            setattr(owner, name, real)

    def _stand_in(self, name: str, real: Callable[[], int]) -> Callable[[], int]:
        def count() -> int:
            if not self._active:
                return real()
            if name not in self._answers:
                self._answers[name] = _in_another_process(real)
            return self._answers[name]

        count.__name__ = name
        return count


def _in_another_process(function: Callable[[], int]) -> int:
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writable, str(int(function())).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with open(readable, 'rb') as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return int(answer) if answer else 0


def opened() -> str | None:
    """A device that this process has open; None if it has none."""
    for fd in os.listdir('/proc/self/fd'):
        try:
            path = os.readlink(f'/proc/self/fd/{fd}')
        except OSError:
            continue
        if path.startswith(_DEVICES):
            return path
    return None
