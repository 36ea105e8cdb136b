"""``make test-stable-fast``: a UNet that stable-fast has traced and compiled, on the CPU, plain and through the cache.

stable-fast ties a Python object to each module that it traces itself, which no archive of torch can hold; so torch
does the tracing and freezing here, and the passes of stable-fast's compile configuration run on the result. These leave
a graph that is another one once it was saved, with results that differ in the last bits; so the loader saves it and
loads it again.
"""

from __future__ import annotations

import io
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


def compiled(folder: str) -> Any:
    """The loader: a checkpoint to a compiled module."""
    from diffusers import UNet2DConditionModel
    from sfast.compilers import diffusion_pipeline_compiler as compiler

    unet = _Plain(UNet2DConditionModel.from_pretrained(folder)).eval()
    config = compiler.CompilationConfig.Default()
    config.enable_jit_freeze = False
    with torch.no_grad():
        traced = torch.jit.freeze(torch.jit.trace(unet, inputs(), check_trace=False, strict=False))
        module = compiler._build_ts_compiler(config)(traced, inputs())
    archive = io.BytesIO()
    torch.jit.save(module, archive)
    archive.seek(0)
    return torch.jit.load(archive)


def child(folder: str, out: str) -> None:
    from overmind.api import load, stats

    module = load(compiled, folder)
    with torch.no_grad():
        torch.save(module(*inputs()), out)
    s = stats()
    print(json.dumps({'counts': [s.hits, s.misses, s.bypasses], 'reasons': s.reasons, 'seconds': s.loads[0].seconds}))


def run(folder: Path, out: Path, **variables: str) -> tuple[Any, torch.Tensor]:
    program = f'from integration.stable_fast import child; child({str(folder)!r}, {str(out)!r})'
    line = [sys.executable, '-W', 'ignore', '-c', program]
    done = subprocess.run(line, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1]), torch.load(out)


def main() -> int:
    import sfast

    assert hasattr(sfast, '_C'), 'the extension of stable-fast cannot be loaded'
    with tempfile.TemporaryDirectory(prefix='overmind-stable-fast-') as place:
        folder, out, root = (Path(place, n) for n in ('unet', 'out.pt', 'root'))
        root.mkdir()
        build(str(folder))
        with torch.no_grad():
            truth = compiled(str(folder))(*inputs())
        failed = 0
        for fill in ('inline', 'subprocess'):
            (root / fill).mkdir()
            for expected in ([0, 1, 0], [1, 0, 0]):
                variables = {'OVERMIND_ROOT': str(root / fill), 'OVERMIND_FILL': fill, 'OVERMIND_STRICT': '1'}
                result, output = run(folder, out, **variables)
                equal = torch.equal(output, truth)
                passed = result['counts'] == expected and equal
                failed += not passed
                print('passed' if passed else 'FAILED', f'fill {fill}:', result, 'equal' if equal else 'other output')
    print(f'{4 - failed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
