"""Loaders as a user writes them around the libraries; in a module of their own, for short keys."""

from __future__ import annotations

from typing import Any

import torch


def bert(folder: str) -> Any:
    import transformers

    return transformers.BertModel.from_pretrained(folder)


def hold(models: Any) -> dict[str, Any]:
    return {'models': models, 'own': torch.arange(3)}


def submodule(model: Any) -> Any:
    return {'layer': model.encoder.layer[0], 'own': torch.arange(3)}


def parameter(model: Any) -> Any:
    return [model.embeddings.word_embeddings.weight, torch.arange(3)]


def storage(model: Any) -> Any:
    return [model.embeddings.word_embeddings.weight.data.untyped_storage()]


def view(model: Any) -> Any:
    return [model.embeddings.word_embeddings.weight.detach()[1:3]]


def on_disk(folder: str, scratch: str) -> Any:
    from accelerate import disk_offload

    model = bert(folder).eval()
    disk_offload(model, scratch, execution_device=torch.device('cpu'))
    return model


def unet(folder: str) -> Any:
    from diffusers import UNet2DModel

    return UNet2DModel.from_pretrained(folder)


def layerwise(folder: str) -> Any:
    model = unet(folder)
    model.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
    return model


def grouped(folder: str, scratch: str | None = None) -> Any:
    model = unet(folder)
    model.enable_group_offload(
        onload_device=torch.device('cpu'),
        offload_device=torch.device('cpu'),
        offload_type='leaf_level',
        offload_to_disk_path=scratch,
    )
    return model


def training(folder: str) -> Any:
    model = bert(folder)
    model.gradient_checkpointing_enable()
    return model.train()


def head(model: Any) -> dict[str, Any]:
    weight = model.embeddings.word_embeddings.weight
    made = torch.ones(2, dtype=weight.dtype, device=weight.device, requires_grad=weight.requires_grad)
    return {'model': model, 'head': made, 'training': model.training}
