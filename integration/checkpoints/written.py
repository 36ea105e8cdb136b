"""What was written, for the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Written:
    """A part of a checkpoint."""

    name: str
    tensors: int
    nbytes: int

    @staticmethod
    def of(name: str, weights: Mapping[str, Any]) -> Written:
        return Written(name, len(weights), sum(weight.nbytes for weight in weights.values()))
