"""The published configurations of Stable Diffusion 1.5, its ControlNets and a Llama, and the same graphs made small."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_UNET: dict[str, Any] = {
    'sample_size': 64,
    'in_channels': 4,
    'out_channels': 4,
    'down_block_types': ('CrossAttnDownBlock2D',) * 3 + ('DownBlock2D',),
    'up_block_types': ('UpBlock2D',) + ('CrossAttnUpBlock2D',) * 3,
    'block_out_channels': (320, 640, 1280, 1280),
    'layers_per_block': 2,
    'cross_attention_dim': 768,
    'attention_head_dim': 8,
    'norm_num_groups': 32,
}
_CONTROLNET: dict[str, Any] = {
    'in_channels': 4,
    'down_block_types': _UNET['down_block_types'],
    'block_out_channels': _UNET['block_out_channels'],
    'layers_per_block': 2,
    'cross_attention_dim': 768,
    'attention_head_dim': 8,
    'norm_num_groups': 32,
    'conditioning_embedding_out_channels': (16, 32, 96, 256),
}
_VAE: dict[str, Any] = {
    'sample_size': 512,
    'block_out_channels': (128, 256, 512, 512),
    'down_block_types': ('DownEncoderBlock2D',) * 4,
    'up_block_types': ('UpDecoderBlock2D',) * 4,
    'layers_per_block': 2,
    'latent_channels': 4,
    'norm_num_groups': 32,
    'scaling_factor': 0.18215,
}
_TEXT_ENCODER: dict[str, Any] = {
    'vocab_size': 49408,
    'hidden_size': 768,
    'intermediate_size': 3072,
    'projection_dim': 768,
    'num_hidden_layers': 12,
    'num_attention_heads': 12,
    'max_position_embeddings': 77,
    'hidden_act': 'quick_gelu',
    'layer_norm_eps': 1e-5,
    'pad_token_id': 1,
    'bos_token_id': 0,
    'eos_token_id': 2,
}

# Eight of the layers of Llama 3 8B, with the vocabulary of Llama 2.
_LLAMA: dict[str, Any] = {
    'vocab_size': 32000,
    'hidden_size': 4096,
    'intermediate_size': 14336,
    'num_hidden_layers': 8,
    'num_attention_heads': 32,
    'num_key_value_heads': 8,
    'max_position_embeddings': 8192,
    'tie_word_embeddings': False,
}

SCHEDULER: dict[str, Any] = {
    'beta_start': 0.00085,
    'beta_end': 0.012,
    'beta_schedule': 'scaled_linear',
    'num_train_timesteps': 1000,
    'set_alpha_to_one': False,
    'skip_prk_steps': True,
    'steps_offset': 1,
}

MODEL_INDEX: dict[str, Any] = {
    '_class_name': 'StableDiffusionPipeline',
    '_diffusers_version': '0.6.0',
    'feature_extractor': [None, None],
    'requires_safety_checker': False,
    'safety_checker': [None, None],
    'scheduler': ['diffusers', 'PNDMScheduler'],
    'text_encoder': ['transformers', 'CLIPTextModel'],
    'tokenizer': ['transformers', 'CLIPTokenizer'],
    'unet': ['diffusers', 'UNet2DConditionModel'],
    'vae': ['diffusers', 'AutoencoderKL'],
}

# The single-file checkpoint, and the folder of configurations beside it.
SINGLE_FILE, SINGLE_FILE_CONFIG = 'v1-5.safetensors', 'config'

_SMALL = {'block_out_channels': (8, 16, 32, 32), 'norm_num_groups': 8}
_SMALL_ATTENTION = {'cross_attention_dim': 32, 'attention_head_dim': 4}


@dataclass(frozen=True)
class Sizes:
    """One size: the configuration of each of the networks."""

    unet: dict[str, Any] = field(default_factory=lambda: _UNET)
    controlnet: dict[str, Any] = field(default_factory=lambda: _CONTROLNET)
    vae: dict[str, Any] = field(default_factory=lambda: _VAE)
    text_encoder: dict[str, Any] = field(default_factory=lambda: _TEXT_ENCODER)
    llama: dict[str, Any] = field(default_factory=lambda: _LLAMA)


SIZES: dict[str, Sizes] = {
    'true': Sizes(),
    'tiny': Sizes(
        unet={**_UNET, **_SMALL, **_SMALL_ATTENTION, 'sample_size': 8},
        controlnet={**_CONTROLNET, **_SMALL, **_SMALL_ATTENTION, 'conditioning_embedding_out_channels': (4, 8, 8, 8)},
        vae={**_VAE, **_SMALL, 'sample_size': 64},
        text_encoder={**_TEXT_ENCODER, 'hidden_size': 32, 'intermediate_size': 64, 'num_attention_heads': 4},
        llama={**_LLAMA, 'vocab_size': 512, 'hidden_size': 128, 'intermediate_size': 256, 'num_attention_heads': 8},
    ),
}
