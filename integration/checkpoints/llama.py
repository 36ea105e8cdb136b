"""A causal language model of eight of Llama 3's layers, as safetensors in two shards or as one pickle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from integration.checkpoints.configs import Sizes
from integration.checkpoints.weights import create
from integration.checkpoints.written import Written


def write_llama(folder: Path, sizes: Sizes, pickled: bool) -> Iterator[Written]:
    """``LlamaForCausalLM`` in bfloat16."""
    import torch
    import transformers

    config = transformers.LlamaConfig(**sizes.llama)
    model = create(lambda: transformers.LlamaForCausalLM(config), 'llama', torch.bfloat16)
    # What is not in a checkpoint, and so has no value yet.
    config.dtype = torch.bfloat16
    weights = model.state_dict()
    if pickled:
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
        torch.save(weights, folder / 'pytorch_model.bin')
    else:
        half = sum(weight.nbytes for weight in weights.values()) // 2
        model.save_pretrained(folder, max_shard_size=half + max(weight.nbytes for weight in weights.values()))
    yield Written.of('llama', weights)
