"""The parts of Qwen-Image and of its editing models."""

from typing import Any

import diffusers
import transformers

from tests.support.tiny_families.parts import CHAT_TEMPLATE, flow


def qwen_codec(channels: int = 3) -> Any:
    """A video codec, as Qwen-Image's is: 8 pixels to a latent."""
    return diffusers.AutoencoderKLQwenImage(
        base_dim=6, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=1, temperal_downsample=[False, True, True],
        input_channels=channels,
    )  # fmt: skip


def qwen_vl(tokenizer: Any) -> Any:
    def ids(token: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(token))

    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer) + 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32768,
            "rope_parameters": {"mrope_section": [1, 1, 2], "rope_type": "default", "rope_theta": 1e6},
            "bos_token_id": 0, "eos_token_id": ids("<|im_end|>"),
        },
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16,
            "fullatt_block_indexes": [0],
        },
        vision_end_token_id=ids("<|vision_end|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
    )  # fmt: skip
    return transformers.Qwen2_5_VLForConditionalGeneration(config).eval()


def qwen_transformer(**options: Any) -> Any:
    return diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=64, out_channels=16, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=16, guidance_embeds=False, axes_dims_rope=(8, 4, 4), **options,
    )  # fmt: skip


def qwen_scheduler() -> Any:
    return flow(
        use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, shift_terminal=0.02, shift=1.0,
        time_shift_type="exponential",
    )  # fmt: skip


def qwen_vl_processor(tokenizer: Any) -> Any:
    """Qwen2-VL's and 2.5-VL's. It needs torchvision."""
    return transformers.Qwen2VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=56 * 56 * 4),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )


def qwen3_vl(tokenizer: Any, *, layers: int = 2, width: int = 16) -> Any:
    """Qwen3-VL. Image encoders of these are one layer deep."""

    def ids(token: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(token))

    config = transformers.Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer) + 8, "hidden_size": width, "intermediate_size": 16,
            "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
            "max_position_embeddings": 32768, "bos_token_id": 0, "eos_token_id": ids("<|im_end|>"),
            "rope_parameters": {
                "mrope_section": [2, 3, 3], "mrope_interleaved": True, "rope_type": "default", "rope_theta": 1e6,
            },
        },
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": width,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        vision_end_token_id=ids("<|vision_end|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
    )  # fmt: skip
    return transformers.Qwen3VLForConditionalGeneration(config).eval()


def qwen3_vl_processor(tokenizer: Any, *, max_pixels: int = 1024 * 1024) -> Any:
    """Qwen3-VL's. It needs torchvision."""
    return transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(patch_size=16, min_pixels=64 * 64, max_pixels=max_pixels),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen3VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )
