"""Weights that cost little to make, are the same everywhere, and let a forward pass give finite, varied values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_CHUNK = 1 << 23


def create(make: Callable[[], Any], component: str, dtype: torch.dtype = torch.float16) -> Any:
    """A network for inference with all its weights made."""
    with torch.device('meta'):
        network = make().to(dtype).eval()
    network.to_empty(device='cpu')
    fill(network, component)
    return network


def _bound(name: str, weight: torch.Tensor) -> float:
    """Half the width of the uniform distribution: variance 1/fan_in for a layer, 0.02 squared for an embedding."""
    if weight.ndim < 2 or name.endswith(('token_embedding.weight', 'position_embedding.weight')):
        return 0.02 * math.sqrt(3)
    return math.sqrt(3 / weight[0].numel())


def _is_scale(name: str, weight: torch.Tensor) -> bool:
    return weight.ndim == 1 and name.endswith('weight')


@torch.no_grad()
def fill(module: torch.nn.Module, component: str) -> None:
    """Fill every parameter and saved buffer; the values follow from the component's and the tensor's names only."""
    for name, weight in module.state_dict().items():
        if _is_scale(name, weight):
            weight.fill_(1)
            continue
        if not weight.is_floating_point():
            raise TypeError(f'{component}.{name} is {weight.dtype}: only floating point weights are made here')
        digest = hashlib.sha256(f'{component}.{name}'.encode()).digest()
        generator = np.random.Generator(np.random.SFC64(int.from_bytes(digest[:16], 'little')))
        flat, bound = weight.view(-1), _bound(name, weight)
        for start in range(0, flat.numel(), _CHUNK):
            piece = flat[start : start + _CHUNK]
            bits = generator.integers(-32768, 32768, piece.numel(), dtype=np.int16)
            piece.copy_(torch.from_numpy(bits)).mul_(bound / 32768)
