"""Checkpoints whose images have more or fewer channels than three."""

from typing import Any

import diffusers
import torch

from tests.support.tiny_families.flow_models import sd3
from tests.support.tiny_families.parts import codec, flow, qwen_tokenizer
from tests.support.tiny_families.qwen import qwen3_vl, qwen3_vl_processor
from tests.support.tiny_families.unets import sd15

LATENTS = 16


def with_channels(channels: int) -> Any:
    """Stable Diffusion 3 with a codec for grey images, of one channel, or for images with alpha, of four."""
    pipeline = sd3()
    pipeline.vae = codec(16, scaling_factor=1.5305, shift_factor=0.0609, in_channels=channels, out_channels=channels)
    return pipeline


def sd15_with_alpha() -> Any:
    """Its latents have the channels of its images: its classes take such an image for latents."""
    pipeline = sd15()
    pipeline.vae = codec(scaling_factor=0.18215, in_channels=4, out_channels=4)
    return pipeline


def qwen_image_21() -> Any:
    """Its codec draws four channels, whatever is asked for."""
    torch.manual_seed(31)
    tokenizer = qwen_tokenizer()
    vae = diffusers.AutoencoderKLQwenImage21(
        base_dim=8, decoder_base_dim=8, z_dim=LATENTS, dim_mult=[1, 1, 2, 2, 2], num_res_blocks=1,
        temperal_downsample=[False, True, True, True], latents_mean=[0.0] * LATENTS, latents_std=[1.0] * LATENTS,
    )  # fmt: skip
    transformer = diffusers.QwenImage21Transformer2DModel(
        in_channels=LATENTS, out_channels=LATENTS, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        context_in_dim=32, mlp_ratio=2, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    scheduler = flow(use_dynamic_shifting=True, shift=1.0)
    return diffusers.QwenImage21Pipeline(
        scheduler=scheduler, vae=vae, text_encoder=qwen3_vl(tokenizer, width=32),
        processor=qwen3_vl_processor(tokenizer), transformer=transformer,
    )  # fmt: skip
