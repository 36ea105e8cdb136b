"""The names that the original code of Stable Diffusion gave to its tensors, from those of diffusers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_RESNET = {
    'norm1': 'in_layers.0',
    'conv1': 'in_layers.2',
    'norm2': 'out_layers.0',
    'conv2': 'out_layers.3',
    'time_emb_proj': 'emb_layers.1',
    'conv_shortcut': 'skip_connection',
}
_UNET = {
    'time_embedding.linear_1': 'time_embed.0',
    'time_embedding.linear_2': 'time_embed.2',
    'conv_in': 'input_blocks.0.0',
    'conv_norm_out': 'out.0',
    'conv_out': 'out.2',
}
_VAE_ATTENTION = {
    'group_norm': 'norm',
    'to_q': 'q',
    'to_k': 'k',
    'to_v': 'v',
    'to_out.0': 'proj_out',
}


def _unet_blocks() -> Iterator[tuple[str, str]]:
    """Prefixes, ours first: four levels of two blocks down and of three blocks up."""
    for level in range(4):
        for block in range(2):
            number = 3 * level + block + 1
            yield f'down_blocks.{level}.resnets.{block}.', f'input_blocks.{number}.0.'
            yield f'down_blocks.{level}.attentions.{block}.', f'input_blocks.{number}.1.'
        for block in range(3):
            yield f'up_blocks.{level}.resnets.{block}.', f'output_blocks.{3 * level + block}.0.'
            yield f'up_blocks.{level}.attentions.{block}.', f'output_blocks.{3 * level + block}.1.'
        yield f'down_blocks.{level}.downsamplers.0.conv.', f'input_blocks.{3 * level + 3}.0.op.'
        # The first level up has no attention before it.
        yield f'up_blocks.{level}.upsamplers.0.', f'output_blocks.{3 * level + 2}.{2 if level else 1}.'
    yield 'mid_block.attentions.0.', 'middle_block.1.'
    for block in range(2):
        yield f'mid_block.resnets.{block}.', f'middle_block.{2 * block}.'


def _vae_blocks() -> Iterator[tuple[str, str]]:
    for level in range(4):
        for block in range(2):
            yield f'encoder.down_blocks.{level}.resnets.{block}.', f'encoder.down.{level}.block.{block}.'
        for block in range(3):
            yield f'decoder.up_blocks.{level}.resnets.{block}.', f'decoder.up.{3 - level}.block.{block}.'
        yield f'encoder.down_blocks.{level}.downsamplers.0.', f'encoder.down.{level}.downsample.'
        yield f'decoder.up_blocks.{level}.upsamplers.0.', f'decoder.up.{3 - level}.upsample.'
    for half in ('encoder', 'decoder'):
        yield f'{half}.mid_block.attentions.0.', f'{half}.mid.attn_1.'
        for block in range(2):
            yield f'{half}.mid_block.resnets.{block}.', f'{half}.mid.block_{block + 1}.'


def _renamed(key: str, prefixes: dict[str, str]) -> str:
    for ours, theirs in prefixes.items():
        if key.startswith(ours):
            return theirs + key[len(ours) :]
    return key


def _exchange(key: str, words: dict[str, str]) -> str:
    """One module's name in the middle of a key, whole."""
    module, _, leaf = key.rpartition('.')
    for ours, theirs in words.items():
        if module == ours or module.endswith(f'.{ours}'):
            return f'{module[: len(module) - len(ours)]}{theirs}.{leaf}'
    return key


def _unet(key: str, prefixes: dict[str, str]) -> str:
    if '.resnets.' in key:
        return _renamed(_exchange(key, _RESNET), prefixes)
    return _renamed(key, prefixes) if 'block' in key else _exchange(key, _UNET)


def _vae(key: str, prefixes: dict[str, str]) -> str:
    if '.attentions.' in key:
        key = _exchange(key, _VAE_ATTENTION)
    key = key.replace('conv_shortcut', 'nin_shortcut').replace('conv_norm_out', 'norm_out')
    return _renamed(key, prefixes)


def original_names(part: str, weights: dict[str, Any]) -> dict[str, Any]:
    """The tensors of ``unet``, ``vae`` or ``text_encoder`` under their original names.

    The VAE's attention was made of convolutions, so its matrices have two more dimensions there.
    """
    if part == 'unet':
        blocks = dict(_unet_blocks())
        return {f'model.diffusion_model.{_unet(key, blocks)}': value for key, value in weights.items()}
    if part == 'text_encoder':
        return {f'cond_stage_model.transformer.{key}': value for key, value in weights.items()}
    blocks = dict(_vae_blocks())
    named = {f'first_stage_model.{_vae(key, blocks)}': value for key, value in weights.items()}
    attention = re.compile(r'\.attn_1\.(q|k|v|proj_out)\.weight$')
    return {key: value[..., None, None] if attention.search(key) else value for key, value in named.items()}
