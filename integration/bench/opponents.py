"""Who loads. A new opponent is a row of a table, and where it keeps something, a class in ``caches``."""

from __future__ import annotations

from dataclasses import dataclass

from integration.bench.environments import CURRENT, OLDER, OVERMIND_CACHE, TENSORS, Environment


@dataclass(frozen=True)
class Opponent:
    """One way to get the weights of a workload."""

    name: str
    environment: Environment
    cache: str = ''  # what a first load fills: of caches.CACHES
    reader: str = ''  # of loads.TENSOR_LOADS, for those that read files and build no model
    pickled: bool = False  # reads the pickle, not the safetensors

    @property
    def patches(self) -> bool:
        return self.cache in ('overmind-fs', 'overmind-cache')


PLAIN = Opponent('plain', CURRENT)
OURS = Opponent('overmind-fs', CURRENT, 'overmind-fs')
# None that anybody uses: what a hit is made of, by the means that everybody has.
UNPICKLER = Opponent('C unpickler and tensors alone', CURRENT, 'unpickled', reader='unpickled')
PLAIN_OLDER = Opponent('plain (transformers 4.57)', OLDER)
OURS_OLDER = Opponent('overmind-fs (transformers 4.57)', OLDER, 'overmind-fs')
THEIRS = Opponent('overmind-cache 1.1.2', OVERMIND_CACHE, 'overmind-cache')
READERS = (
    Opponent('safetensors load_file', TENSORS, reader='load_file'),
    Opponent('torch.load', TENSORS, reader='torch.load', pickled=True),
    Opponent('torch.load (mmap)', TENSORS, reader='torch.load-mmap', pickled=True),
    Opponent('runai-model-streamer', TENSORS, reader='runai'),
    Opponent('fastsafetensors', TENSORS, reader='fastsafetensors'),
    Opponent('flashpack', TENSORS, 'flashpack', reader='flashpack'),
)
# Those of a group are measured in turn; what one group cached is gone when the next begins.
GROUPS = ((PLAIN, OURS, UNPICKLER), (PLAIN_OLDER, OURS_OLDER, THEIRS), READERS)
OPPONENTS = tuple(opponent for group in GROUPS for opponent in group)
