"""Stable Diffusion 1.5 and two ControlNets on disk, of true size or tiny, without a network."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from integration.checkpoints.configs import MODEL_INDEX, SCHEDULER, SIZES, Sizes
from integration.checkpoints.vocabulary import write_tokenizer

DTYPES = ('fp16', 'fp32')
CONTROLNETS = ('controlnet-0', 'controlnet-1')
_MARKER = 'complete.json'


def _version(size: str, dtype: str) -> str:
    """Changes whenever the files would come out otherwise."""
    digest = hashlib.sha256(f'{size} {dtype}'.encode())
    for source in sorted(Path(__file__).parent.glob('*.py')):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _networks(sizes: Sizes) -> Iterator[tuple[str, Callable[[], Any]]]:
    import diffusers
    import transformers

    yield 'pipeline/unet', lambda: diffusers.UNet2DConditionModel(**sizes.unet)
    yield 'pipeline/vae', lambda: diffusers.AutoencoderKL(**sizes.vae)
    yield 'pipeline/text_encoder', lambda: transformers.CLIPTextModel(transformers.CLIPTextConfig(**sizes.text_encoder))
    for name in CONTROLNETS:
        yield name, lambda: diffusers.ControlNetModel(**sizes.controlnet)


def _save(folder: Path, name: str, create: Callable[[], Any], dtype: str) -> tuple[int, int]:
    """One network, filled in half precision whatever its dtype on disk; tensors and bytes."""
    import torch

    from integration.checkpoints.weights import fill

    with torch.device('meta'):
        network = create().half().eval()
    network.to_empty(device='cpu')
    fill(network, name)
    if dtype == 'fp32':
        network.float()
    network.save_pretrained(folder / name, safe_serialization=True)
    weights = network.state_dict().values()
    return len(weights), sum(weight.nbytes for weight in weights)


def build(folder: Path, size: str = 'true', dtype: str = 'fp16', report: Callable[[str], None] | None = None) -> Path:
    """Build the checkpoint unless it is complete already.

    The folder then holds ``pipeline``, for ``StableDiffusionPipeline``, and ``controlnet-0`` and ``controlnet-1``.
    """
    say = report or (lambda text: print(text, file=sys.stderr, flush=True))
    marker, version = folder / _MARKER, _version(size, dtype)
    if marker.exists() and json.loads(marker.read_text()).get('version') == version:
        return folder
    start = time.perf_counter()
    say(f'building the {size} {dtype} checkpoint in {folder}')
    shutil.rmtree(folder, ignore_errors=True)
    write_tokenizer(folder / 'pipeline' / 'tokenizer')
    (folder / 'pipeline' / 'model_index.json').write_text(json.dumps(MODEL_INDEX, indent=2))

    import diffusers

    scheduler: Any = diffusers.PNDMScheduler(**SCHEDULER)
    scheduler.save_pretrained(folder / 'pipeline' / 'scheduler')
    tensors = nbytes = 0
    for name, create in _networks(SIZES[size]):
        counted, written = _save(folder, name, create, dtype)
        tensors, nbytes = tensors + counted, nbytes + written
        say(f'  {name}: {counted} tensors, {written / 1e6:,.1f} MB ({time.perf_counter() - start:.1f} s)')
    # Pages that are not on disk yet would count as somebody's dirty memory later on.
    os.sync()
    facts = {'version': version, 'size': size, 'dtype': dtype, 'tensors': tensors, 'bytes': nbytes}
    marker.write_text(json.dumps(facts))
    say(f'  in all: {tensors:,} tensors, {nbytes / 1e9:.2f} GB, {time.perf_counter() - start:.1f} s')
    return folder
