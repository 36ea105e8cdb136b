"""A device that is memory of the host, and as late with every copy as a real one may be."""

from __future__ import annotations

from typing import Any

import torch


class FakeLayer:
    """Copies happen when they are waited for, and not before; so a source that was changed too early shows."""

    def __init__(self, *_: Any, refuse: str | None = None, fail_after: int = -1) -> None:
        self.refuse, self.fail_after = refuse, fail_after
        self.buffers: list[Any] = []
        self.sizes: list[int] = []
        self.done = self.waits = 0
        self.locked: dict[int, int] = {}
        self.ever_locked: list[tuple[int, int]] = []
        self.most_locked = 0
        self._queue: list[tuple[Any, Any]] = []

    def pinned(self, nbytes: int) -> Any:
        self.buffers.append(torch.zeros(nbytes, dtype=torch.uint8))
        return self.buffers[-1]

    def copy(self, target: Any, source: Any) -> None:
        assert target.dtype == source.dtype == torch.uint8
        assert len(target) == len(source) > 0
        if len(self._queue) == self.fail_after:
            raise RuntimeError('the device is gone')
        self._queue.append((target, source))
        self.sizes.append(len(source))

    def mark(self) -> int:
        return len(self._queue)

    def wait(self, mark: int) -> None:
        self.waits += 1
        self._until(mark)

    def finish(self) -> None:
        self._until(len(self._queue))

    def _until(self, mark: int) -> None:
        for target, source in self._queue[self.done : mark]:
            target.copy_(source)
        self.done = max(self.done, mark)

    def register(self, address: int, nbytes: int) -> str | None:
        assert address % 4096 == nbytes % 4096 == 0
        assert all(address + nbytes <= a or a + n <= address for a, n in self.locked.items())
        if self.refuse:
            return self.refuse
        self.locked[address] = nbytes
        self.ever_locked.append((address, nbytes))
        self.most_locked = max(self.most_locked, len(self.locked))
        return None

    def unregister(self, address: int) -> None:
        nbytes = self.locked.pop(address)
        for _, source in self._queue[self.done :]:
            assert not address <= source.data_ptr() < address + nbytes, 'the device still reads it'


def pairs(*sizes: int) -> list[tuple[Any, Any]]:
    """Targets of zeros and sources of chance, bytes."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.zeros(n, dtype=torch.uint8), torch.randint(1, 256, (n,), dtype=torch.uint8, generator=generator))
        for n in sizes
    ]


def same(copied: list[tuple[Any, Any]]) -> bool:
    return all(torch.equal(target, source) for target, source in copied)
