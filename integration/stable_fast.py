"""``make test-stable-fast``: a UNet that stable-fast compiles, on the CPU, plain and through the cache.

- As its users do it: ``compile_unet``, which traces at the first call, with the arguments flattened to tensors and the
  outputs made into the classes that they were of. What is cached is the model before its first call.
- The same model when it was called: stable-fast ties a Python object to each module that it has traced itself, which no
  archive of torch can hold. A bypass.
- torch traces and freezes, and the passes of stable-fast's compile configuration run on the result. These leave a graph
  that is another one once it was saved, with results that differ in the last bits; so the loader saves it and loads it
  again.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

_CHANNELS, _SIZE, _TOKENS, _WIDTH = 4, 16, 7, 32


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    sample = torch.randn(1, _CHANNELS, _SIZE, _SIZE, generator=generator)
    return sample, torch.tensor(10), torch.randn(1, _TOKENS, _WIDTH, generator=generator)


def build(folder: str) -> None:
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    unet: Any = UNet2DConditionModel(
        sample_size=_SIZE,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=_WIDTH,
        attention_head_dim=8,
        norm_num_groups=8,
        down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'),
        up_block_types=('UpBlock2D', 'CrossAttnUpBlock2D'),
    )
    unet.save_pretrained(folder)


class _Plain(torch.nn.Module):
    """Tensors in, a tensor out."""

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, sample: torch.Tensor, step: torch.Tensor, states: torch.Tensor) -> Any:
        return self.unet(sample, step, states, return_dict=False)[0]


def _config() -> Any:
    from sfast.compilers import diffusion_pipeline_compiler as compiler

    config = compiler.CompilationConfig.Default()
    config.enable_jit_freeze = False
    return config


def compiled(folder: str) -> Any:
    """A loader: a checkpoint to a compiled module."""
    from diffusers import UNet2DConditionModel
    from sfast.compilers import diffusion_pipeline_compiler as compiler

    unet = _Plain(UNet2DConditionModel.from_pretrained(folder)).eval()
    with torch.no_grad():
        traced = torch.jit.freeze(torch.jit.trace(unet, inputs(), check_trace=False, strict=False))
        module = compiler._build_ts_compiler(_config())(traced, inputs())
    archive = io.BytesIO()
    torch.jit.save(module, archive)
    archive.seek(0)
    return torch.jit.load(archive)


def lazy(folder: str) -> Any:
    """A loader: a model that stable-fast compiles when it is called."""
    from diffusers import UNet2DConditionModel
    from sfast.compilers import diffusion_pipeline_compiler as compiler

    return compiler.compile_unet(UNet2DConditionModel.from_pretrained(folder).eval(), _config())


def called(folder: str) -> Any:
    unet = lazy(folder)
    with torch.no_grad():
        unet(*inputs())
    return unet


LOADERS = {loader.__name__: loader for loader in (compiled, lazy, called)}
MISS, HIT, BYPASS = [0, 1, 0], [1, 0, 0], [0, 0, 1]
EXPECTED = {'compiled': (MISS, HIT), 'lazy': (MISS, HIT), 'called': (BYPASS, BYPASS)}


def output_of(module: Any) -> tuple[str, torch.Tensor]:
    """The class of the output, and its tensor."""
    with torch.no_grad():
        found = module(*inputs())
    return type(found).__name__, found if isinstance(found, torch.Tensor) else found.sample


def child(name: str, folder: str, out: str) -> None:
    from overmind.api import load, stats

    torch.save(output_of(load(LOADERS[name], folder)), out)
    s = stats()
    print(json.dumps({'counts': [s.hits, s.misses, s.bypasses], 'reasons': s.reasons, 'seconds': s.loads[0].seconds}))


def run(name: str, folder: Path, out: Path, **variables: str) -> tuple[Any, tuple[str, torch.Tensor]]:
    program = f'from integration.stable_fast import child; child({name!r}, {str(folder)!r}, {str(out)!r})'
    line = [sys.executable, '-W', 'ignore', '-c', program]
    done = subprocess.run(line, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1]), torch.load(out)


def main() -> int:
    import sfast

    assert hasattr(sfast, '_C'), 'the extension of stable-fast cannot be loaded'
    outcomes = []
    with tempfile.TemporaryDirectory(prefix='overmind-stable-fast-') as place:
        folder, out = Path(place, 'unet'), Path(place, 'out.pt')
        build(str(folder))
        for name, fill in itertools.product(LOADERS, ('inline', 'subprocess')):
            kind, truth = output_of(LOADERS[name](str(folder)))
            root = Path(place, f'{name}-{fill}')
            root.mkdir()
            # A bypass is what is expected of one.
            strict = '0' if name == 'called' else '1'
            for expected in EXPECTED[name]:
                variables = {'OVERMIND_ROOT': str(root), 'OVERMIND_FILL': fill, 'OVERMIND_STRICT': strict}
                result, output = run(name, folder, out, **variables)
                equal = output[0] == kind and torch.equal(output[1], truth)
                outcomes.append(result['counts'] == expected and equal)
                verdict = 'passed' if outcomes[-1] else 'FAILED'
                print(verdict, f'{name}, fill {fill}:', result, 'equal' if equal else 'other output')
    print(f'{sum(outcomes)} passed, {len(outcomes) - sum(outcomes)} failed')
    return 0 if all(outcomes) else 1


if __name__ == '__main__':
    sys.exit(main())
