"""Checkpoints whose images have more or fewer channels than three."""

from typing import Any

import diffusers
import torch
import transformers

from tests.support.tiny_families.flow_models import sd3
from tests.support.tiny_families.parts import codec, flow, qwen_tokenizer
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
    processor = transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(patch_size=16, min_pixels=64 * 64, max_pixels=1024 * 1024),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen3VLVideoProcessor(),
        chat_template=tokenizer.chat_template,
    )
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
        scheduler=scheduler, vae=vae, text_encoder=_qwen3_vl(tokenizer), processor=processor, transformer=transformer
    )


def _qwen3_vl(tokenizer: Any) -> Any:
    def ids(token: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(token))

    rope = {"mrope_section": [2, 3, 3], "mrope_interleaved": True, "rope_type": "default", "rope_theta": 1e6}
    config = transformers.Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer) + 8, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 32768,
            "rope_parameters": rope,
        },
        vision_config={
            "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
    )  # fmt: skip
    return transformers.Qwen3VLForConditionalGeneration(config).eval()
