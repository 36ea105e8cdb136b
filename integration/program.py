#!/usr/bin/env python3
"""The program under test: what a user writes, with a stopwatch around it.

It loads a VAE and two ControlNets, then the Stable Diffusion pipeline that is given them, and prints one line of JSON.
Nothing here knows the cache but ``patch``.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PAGE = 4096
PROMPT = 'A photograph of an astronaut riding a horse, 8k'


class Stopwatch:
    """Seconds of each stage, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def memory(process: int | str = 'self') -> dict[str, int]:
    """Resident, proportional, private dirty and anonymous memory of a process, in bytes.

    A page of a file in memory that one process alone has mapped counts as private and dirty; an anonymous page is a
    copy that nobody else can ever share.
    """
    fields = {'Rss:': 'rss', 'Pss:': 'pss', 'Private_Dirty:': 'private_dirty', 'Anonymous:': 'anonymous'}
    lines = Path(f'/proc/{process}/smaps_rollup').read_text().splitlines()
    words = [line.split() for line in lines]
    return {fields[name]: int(kilobytes) * 1024 for name, kilobytes, *_ in words if name in fields}


def huge_pages() -> int:
    """Bytes that this process has mapped as huge pages: of shared memory, of files, and anonymous."""
    fields = ('ShmemPmdMapped:', 'FilePmdMapped:', 'AnonHugePages:')
    words = [line.split() for line in Path('/proc/self/smaps_rollup').read_text().splitlines()]
    return sum(int(number) * 1024 for name, number, *_ in words if name in fields)


def import_libraries() -> None:
    import torch  # noqa: F401
    from diffusers import AutoencoderKL, ControlNetModel, StableDiffusionControlNetPipeline  # noqa: F401


def patch() -> None:
    import overmind.api

    overmind.api.monkey_patch_all()


def load(folder: Path, dtype: torch.dtype, change: bool = False, **options: Any) -> tuple[Any, Any]:
    """The pipeline, and the VAE that it was given; ``options`` are the pipeline's."""
    from diffusers import AutoencoderKL, ControlNetModel, StableDiffusionControlNetPipeline

    vae = AutoencoderKL.from_pretrained(folder / 'pipeline', subfolder='vae', torch_dtype=dtype)
    if change:
        change_vae(vae)
    edges = ControlNetModel.from_pretrained(folder / 'controlnet-0', torch_dtype=dtype)
    depth = ControlNetModel.from_pretrained(folder / 'controlnet-1', torch_dtype=dtype)
    pipeline = StableDiffusionControlNetPipeline.from_pretrained(
        folder / 'pipeline', vae=vae, controlnet=[edges, depth], torch_dtype=dtype, safety_checker=None, **options
    )
    return pipeline, vae


def change_vae(vae: Any) -> None:
    """What a caller may do to an object between two loads."""
    import torch

    vae.note = 'changed by the caller'
    with torch.no_grad():
        vae.decoder.conv_out.bias.fill_(0.25)


def change_kept(vae: Any) -> bool:
    return getattr(vae, 'note', '') == 'changed by the caller' and bool((vae.decoder.conv_out.bias == 0.25).all())


def networks(pipeline: Any) -> dict[str, torch.nn.Module]:
    import torch

    return {name: part for name, part in sorted(pipeline.components.items()) if isinstance(part, torch.nn.Module)}


def storages(pipeline: Any) -> dict[int, torch.UntypedStorage]:
    """Every storage of the pipeline's networks, by address."""
    found = {}
    for network in networks(pipeline).values():
        for tensor in [*network.parameters(), *network.buffers()]:
            found[tensor.data_ptr()] = tensor.untyped_storage()
    return found


def touch(pipeline: Any) -> int:
    """Read a byte of every page of every storage; the sum, so that nothing can be left out."""
    import torch

    total, empty = 0, torch.empty(0, dtype=torch.uint8)
    for storage in storages(pipeline).values():
        pages = empty.set_(storage)
        total += int(pages[::PAGE].sum()) + int(pages[-1])
    return total


def digest(tensor: torch.Tensor) -> str:
    import torch

    values: Any = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(values).hexdigest()


def weights_digest(pipeline: Any) -> str:
    """Over the name, dtype, shape and bytes of every tensor of every network."""
    whole = hashlib.sha256()
    for part, network in networks(pipeline).items():
        for name, tensor in network.state_dict().items():
            whole.update(f'{part}.{name} {tensor.dtype} {tuple(tensor.shape)} {digest(tensor)}\n'.encode())
    return whole.hexdigest()


def forward(pipeline: Any) -> dict[str, Any]:
    """Outputs on a fixed input: digests, to compare bit for bit, and whether the values are of any use.

    The input is as small as the networks allow, since half precision is slow on a CPU.
    """
    import torch

    dtype = pipeline.unet.dtype
    tokens = pipeline.tokenizer(PROMPT, padding='max_length', return_tensors='pt').input_ids
    latents = torch.linspace(-2, 2, 4 * 4 * 4).reshape(1, 4, 4, 4).to(dtype)
    picture = torch.linspace(0, 1, 3 * 32 * 32).reshape(1, 3, 32, 32).to(dtype)
    step = torch.tensor(501)
    with torch.inference_mode():
        text = pipeline.text_encoder(tokens)[0]
        down, middle = pipeline.controlnet(latents, step, text, [picture, picture], [0.5, 0.5], return_dict=False)
        residuals = {'down_block_additional_residuals': down, 'mid_block_additional_residual': middle}
        noise = pipeline.unet(latents, step, text, **residuals, return_dict=False)[0]
        image = pipeline.vae.decode(latents[:, :, :2, :2], return_dict=False)[0]
    outputs = {'tokens': tokens, 'text': text, 'controlnet': middle, 'unet': noise, 'vae': image}
    spread = {name: float(value.float().std()) for name, value in outputs.items()}
    return {
        'digests': {name: digest(value) for name, value in outputs.items()},
        'finite': all(bool(value.isfinite().all()) for value in outputs.values()),
        'spread': spread,
    }


def overwrite(pipeline: Any) -> None:
    """Write to weights in place, as training does."""
    import torch

    with torch.no_grad():
        for parameter in pipeline.unet.parameters():
            parameter.zero_()


def counted() -> dict[str, Any]:
    """What the cache says that it did in this process."""
    import overmind.api

    return dataclasses.asdict(overmind.api.stats())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('checkpoint', type=Path)
    parser.add_argument('--dtype', default='float16', help='of the loaded weights, whatever the files hold')
    parser.add_argument('--cache', action='store_true', help='patch the loaders first')
    parser.add_argument('--touch', action='store_true', help='read a byte of every page, then tokenise a prompt')
    parser.add_argument('--forward', action='store_true', help='run the networks once on a fixed input')
    parser.add_argument('--weights', action='store_true', help='digest of all weights')
    parser.add_argument('--change', action='store_true', help='change the VAE before the pipeline is loaded with it')
    parser.add_argument('--overwrite', action='store_true', help='at the end, write to the weights in place')
    parser.add_argument(
        '--wait', action='store_true', help='print the memory and read a line, after the imports and at the end'
    )
    return parser.parse_args()


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    args = arguments()
    watch = Stopwatch()
    if args.cache:
        with watch.stage('patch'):
            patch()
    with watch.stage('import'):
        import_libraries()
    import torch

    result: dict[str, Any] = {'seconds': watch.seconds}
    if args.wait:
        say({'memory': memory()})
        sys.stdin.readline()
    result['before'] = memory()
    with watch.stage('load'):
        pipeline, vae = load(args.checkpoint, getattr(torch, args.dtype), args.change)
    if args.touch:
        with watch.stage('touch'):
            result['touched'] = touch(pipeline)
        with watch.stage('prompt'):
            pipeline.tokenizer(PROMPT)
    result['after'] = memory()
    weights = storages(pipeline)
    result['storages'], result['bytes'] = len(weights), sum(storage.nbytes() for storage in weights.values())
    result['vae_is_the_same'] = pipeline.vae is vae
    if args.change:
        result['change_kept'] = change_kept(pipeline.vae)
    if args.weights:
        with watch.stage('weights'):
            result['weights'] = weights_digest(pipeline)
    if args.forward:
        with watch.stage('forward'):
            result['outputs'] = forward(pipeline)
    if args.overwrite:
        overwrite(pipeline)
    if args.cache:
        result['stats'] = counted()
    say(result)
    if args.wait:
        sys.stdin.readline()
        say({'memory': memory()})
        sys.stdin.readline()


if __name__ == '__main__':
    main()
