"""What is loaded. A new workload is a row of the table, and where it loads otherwise, a row of ``loads.LOADS``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from integration.checkpoints import build
from integration.harness.places import checkpoint_folder


@dataclass(frozen=True)
class Workload:
    """A checkpoint on disk, and how it is loaded."""

    letter: str
    name: str
    load: str  # of loads.LOADS
    files: str  # of checkpoints.build.KINDS
    dtype: str
    slow: bool = False  # a plain load takes half a minute
    lazy: bool = False  # a plain load maps the files
    compared: bool = True  # also in the other environments
    tensors: str = ''  # kinds of checkpoints with the same tensors, for readers of files: safetensors, then pickle

    @property
    def title(self) -> str:
        return f'{self.letter}: {self.name}'

    def checkpoint(self, size: str) -> Path:
        return build(checkpoint_folder(size, self.files), size, self.files)


_CONTROLNETS = 'SD 1.5 and two ControlNets'
WORKLOADS = (
    Workload('a', f'{_CONTROLNETS}, fp16', 'controlnets', 'fp16', 'float16', lazy=True, tensors='fp16'),
    Workload(
        'a-models',
        f'{_CONTROLNETS}, fp16, without the tokenizer',
        'controlnets-without-tokenizer',
        'fp16',
        'float16',
        lazy=True,
        compared=False,
    ),
    Workload('b', f'{_CONTROLNETS}, fp32 files as fp16', 'controlnets', 'fp32', 'float16'),
    Workload('c', 'Llama of 8 layers, bf16', 'llama', 'llama', 'bfloat16', lazy=True, tensors='llama llama-bin'),
    Workload('d', 'Llama, bf16 files as fp16', 'llama', 'llama', 'float16'),
    Workload('e', 'Llama, bitsandbytes int8', 'int8', 'llama', 'bfloat16', slow=True),
    Workload('f', 'Llama, bitsandbytes NF4', 'nf4', 'llama', 'bfloat16', slow=True),
    Workload('g', 'Llama, pickle (.bin)', 'llama', 'llama-bin', 'bfloat16'),
    Workload('h', 'SD 1.5, a single file', 'single-file', 'single-file', 'float16', lazy=True),
)
