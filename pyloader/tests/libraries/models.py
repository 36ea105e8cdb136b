"""Comparing models, and loads with and without the cache."""

from __future__ import annotations

from typing import Any

import torch

from overmind import nesting
from overmind.api import stats

BERT = {
    'vocab_size': 9, 'hidden_size': 8, 'num_hidden_layers': 2, 'num_attention_heads': 2, 'intermediate_size': 8,
    'max_position_embeddings': 8,
}  # fmt: skip
TOKENS = torch.arange(5)[None]
IMAGE = torch.linspace(-1, 1, 3 * 8 * 8).reshape(1, 3, 8, 8)


def plain(fn: Any, *args: Any, **kwargs: Any) -> Any:
    with nesting.uncached():
        return fn(*args, **kwargs)


def outcomes() -> list[str]:
    return [one.outcome for one in stats().loads]


def reason() -> str:
    return stats().loads[-1].reason


def hooks(module: torch.nn.Module) -> list[Any]:
    found: list[Any] = [
        getattr(hook, '__qualname__', type(hook).__qualname__)
        for kind in ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_state_dict_hooks')
        for hook in getattr(module, kind).values()
    ]
    found.append(type(getattr(module, '_hf_hook', None)).__qualname__)
    found += list(getattr(getattr(module, '_diffusers_hook', None), 'hooks', ()))
    return found


def picture(model: torch.nn.Module) -> list[Any]:
    """Everything that two equal models have in common, weights by their bytes."""
    found: list[Any] = [
        (name, f'{type(m).__module__}.{type(m).__qualname__}', m.training, hooks(m))
        for name, m in model.named_modules()
    ]
    for name, t in (*model.named_parameters(), *model.named_buffers()):
        on_meta = t.device.type == 'meta'
        data = None if on_meta else t.detach().contiguous().view(-1).view(torch.uint8).tolist()
        found.append((name, type(t).__qualname__, t.dtype, tuple(t.shape), t.stride(), t.requires_grad, t.device, data))
    return found


def output(model: Any, *inputs: Any) -> torch.Tensor:
    torch.manual_seed(3)  # for dropout
    found = model(*(inputs or (TOKENS,)))
    out = found if isinstance(found, torch.Tensor) else found[0]
    return out.detach().clone()


def equal(a: Any, b: Any, *inputs: Any) -> None:
    assert a is not b
    assert picture(a) == picture(b)
    assert torch.equal(output(a, *inputs), output(b, *inputs))
