"""Stable Diffusion 1.5 and two ControlNets, in the folders of diffusers and as the one file of the original code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from integration.checkpoints.configs import MODEL_INDEX, SCHEDULER, SINGLE_FILE, SINGLE_FILE_CONFIG, Sizes
from integration.checkpoints.original import original_names
from integration.checkpoints.vocabulary import write_tokenizer
from integration.checkpoints.weights import create
from integration.checkpoints.written import Written

CONTROLNETS = ('controlnet-0', 'controlnet-1')


def _pipeline(sizes: Sizes) -> Iterator[tuple[str, Callable[[], Any]]]:
    import diffusers
    import transformers

    yield 'pipeline/unet', lambda: diffusers.UNet2DConditionModel(**sizes.unet)
    yield 'pipeline/vae', lambda: diffusers.AutoencoderKL(**sizes.vae)
    yield 'pipeline/text_encoder', lambda: transformers.CLIPTextModel(transformers.CLIPTextConfig(**sizes.text_encoder))


def _networks(sizes: Sizes) -> Iterator[tuple[str, Callable[[], Any]]]:
    import diffusers

    yield from _pipeline(sizes)
    for name in CONTROLNETS:
        yield name, lambda: diffusers.ControlNetModel(**sizes.controlnet)


def _write_small_files(folder: Path) -> None:
    import diffusers

    write_tokenizer(folder / 'tokenizer')
    (folder / 'model_index.json').write_text(json.dumps(MODEL_INDEX, indent=2))
    scheduler: Any = diffusers.PNDMScheduler(**SCHEDULER)
    scheduler.save_pretrained(folder / 'scheduler')


def _as_published(name: str, weights: dict[str, Any]) -> dict[str, Any]:
    """The published text encoder has a prefix that transformers 5 has given up, and earlier ones need."""
    if not name.endswith('text_encoder'):
        return weights
    return {key if key.startswith('text_model.') else f'text_model.{key}': value for key, value in weights.items()}


def write_folders(folder: Path, sizes: Sizes, dtype: str) -> Iterator[Written]:
    """``pipeline``, for ``StableDiffusionPipeline``, and ``controlnet-0`` and ``controlnet-1``."""
    from safetensors.torch import save_file

    _write_small_files(folder / 'pipeline')
    for name, make in _networks(sizes):
        network = create(make, name)
        if dtype == 'fp32':
            network.float()
        network.save_pretrained(folder / name, safe_serialization=True)
        weights = _as_published(name, network.state_dict())
        if name.endswith('text_encoder'):
            save_file(weights, folder / name / 'model.safetensors', metadata={'format': 'pt'})
        yield Written.of(name, weights)


def write_single_file(folder: Path, sizes: Sizes) -> Iterator[Written]:
    """The pipeline without ControlNets as one file with the names of CompVis, and the configurations beside it."""
    from safetensors.torch import save_file

    config = folder / SINGLE_FILE_CONFIG
    _write_small_files(config)
    whole = {}
    for name, make in _pipeline(sizes):
        network = create(make, name)
        part = name.partition('/')[2]
        save_config = network.save_config if hasattr(network, 'save_config') else network.config.save_pretrained
        save_config(config / part)
        named = original_names(part, _as_published(name, network.state_dict()))
        whole.update(named)
        yield Written.of(part, named)
    save_file(whole, folder / SINGLE_FILE, metadata={'format': 'pt'})
