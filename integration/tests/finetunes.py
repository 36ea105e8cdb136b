"""``python -m integration.tests.finetunes [--cache] FOLDER...``: loads pipelines and keeps them; prints JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from integration.program import PROMPT, digest, weights_digest


def _outputs(pipeline: Any) -> dict[str, str]:
    import torch

    tokens = pipeline.tokenizer(PROMPT, padding='max_length', return_tensors='pt').input_ids
    latents = torch.linspace(-2, 2, 4 * 4 * 4).reshape(1, 4, 4, 4).to(pipeline.unet.dtype)
    with torch.inference_mode():
        text = pipeline.text_encoder(tokens)[0]
        noise = pipeline.unet(latents, torch.tensor(501), text, return_dict=False)[0]
        image = pipeline.vae.decode(latents[:, :, :2, :2], return_dict=False)[0]
    return {'text': digest(text), 'unet': digest(noise), 'vae': digest(image)}


def _memfds() -> dict[str, int]:
    """How many memories of each arena this process has mapped; with passthrough the kernel names the files instead."""
    inodes: dict[str, set[str]] = defaultdict(set)
    for line in Path('/proc/self/maps').read_text().splitlines():
        _, memfd, name = line.partition('/memfd:overmind:')
        if memfd:
            inodes[name.partition('.safetensors')[0]].add(line.split()[4])
    return {name: len(found) for name, found in inodes.items()}


def main() -> None:
    cache = sys.argv[1] == '--cache'
    import torch
    from diffusers import StableDiffusionPipeline

    if cache:
        import overmind.api

        overmind.api.monkey_patch_all()
    pipelines = [
        StableDiffusionPipeline.from_pretrained(
            folder, torch_dtype=torch.float16, safety_checker=None, local_files_only=True
        )
        for folder in sys.argv[1 + cache :]
    ]
    result: dict[str, Any] = {'memfds': _memfds()}
    result['weights'] = [weights_digest(p) for p in pipelines]
    result['outputs'] = [_outputs(p) for p in pipelines]
    if cache:
        result['stats'] = dataclasses.asdict(overmind.api.stats())
    print(json.dumps(result), flush=True)


if __name__ == '__main__':
    main()
