"""What is loaded. A new workload is a row of the table, with a program that prints the same line of JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from integration.checkpoints import build
from integration.harness.places import checkpoint_folder


@dataclass(frozen=True)
class Workload:
    """A checkpoint on disk and the dtype in which it is loaded."""

    name: str
    files: str
    dtype: str
    # The promise: how many times faster a hit is than a plain load, at least.
    promised: float

    def checkpoint(self, size: str) -> Path:
        return build(checkpoint_folder(size, self.files), size, self.files)

    def arguments(self, size: str) -> list[str | Path]:
        return [checkpoint_folder(size, self.files), '--dtype', self.dtype, '--touch']


WORKLOADS = (
    Workload('fp16 files, loaded as fp16', 'fp16', 'float16', 3),
    Workload('fp32 files, loaded as fp16', 'fp32', 'float16', 60),
)
