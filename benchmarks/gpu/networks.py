"""Networks of real sizes with random weights: FLUX.1 [dev] whole, and the denoisers of Qwen-Image and SDXL."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    QwenImageTransformer2DModel,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from benchmarks.gpu.machine import Machine
from starters.tokens import clip_tokenizer

TOKENS = 512  # of FLUX.1's prompt


@dataclass(frozen=True, slots=True)
class Network:
    """A denoiser by name, how it is made, and the arguments of a forward pass by rows and side in pixels."""

    name: str
    build: Callable[[], Any]
    inputs: Callable[[int, int], dict[str, Any]]


def flux_pipeline(machine: Machine) -> FluxPipeline:
    """FLUX.1 [dev]: 12 billion weights and its encoders, or with `tiny` a small one of the same shape."""
    tiny = machine.tiny
    tokenizer = clip_tokenizer()
    clip = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=32 if tiny else 768, intermediate_size=64 if tiny else 3072,
        num_hidden_layers=2 if tiny else 12, num_attention_heads=4 if tiny else 12, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    t5 = T5Config(
        vocab_size=len(tokenizer) if tiny else 32128, d_model=32 if tiny else 4096, d_kv=8 if tiny else 64,
        d_ff=64 if tiny else 10240, num_layers=2 if tiny else 24, num_heads=4 if tiny else 64,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip

    def codec() -> AutoencoderKL:
        return AutoencoderKL(
            block_out_channels=(8, 8, 8, 16) if tiny else (128, 256, 512, 512),
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=1 if tiny else 2, latent_channels=16, norm_num_groups=4 if tiny else 32,
            scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False,
        )  # fmt: skip

    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0),
        vae=machine.make(codec),
        text_encoder=machine.make(lambda: CLIPTextModel(clip)),
        tokenizer=tokenizer,
        text_encoder_2=machine.make(lambda: T5EncoderModel(t5)),
        tokenizer_2=clip_tokenizer(length=TOKENS),
        transformer=machine.make(lambda: flux_transformer(machine)),
    )
    pipeline.vae.to(memory_format=torch.channels_last)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def flux_transformer(machine: Machine) -> FluxTransformer2DModel:
    if not machine.tiny:
        return FluxTransformer2DModel(guidance_embeds=True)  # the library's defaults are FLUX.1's sizes
    return FluxTransformer2DModel(
        in_channels=64, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, guidance_embeds=True, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip


def networks(machine: Machine) -> list[Network]:
    """For the time of a step by rows and size."""
    tiny = machine.tiny

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=machine.device, dtype=machine.dtype)

    def filled(value: float, *shape: int) -> torch.Tensor:
        return torch.full(shape, value, device=machine.device, dtype=machine.dtype)

    def flux_inputs(rows: int, side: int) -> dict[str, Any]:
        patches = (side // 16) ** 2
        return {
            "hidden_states": noise(rows, patches, 64), "timestep": filled(0.5, rows), "guidance": filled(3.5, rows),
            "pooled_projections": noise(rows, 32 if tiny else 768),
            "encoder_hidden_states": noise(rows, TOKENS, 32 if tiny else 4096),
            "txt_ids": filled(0, TOKENS, 3), "img_ids": filled(0, patches, 3),
        }  # fmt: skip

    def qwen_inputs(rows: int, side: int) -> dict[str, Any]:
        patches = side // 16
        return {
            "hidden_states": noise(rows, patches**2, 64), "timestep": filled(0.5, rows),
            "encoder_hidden_states": noise(rows, 128, 32 if tiny else 3584),
            "encoder_hidden_states_mask": torch.ones(rows, 128, device=machine.device, dtype=torch.long),
            "img_shapes": [[(1, patches, patches)]] * rows,
        }  # fmt: skip

    def sdxl_inputs(rows: int, side: int) -> dict[str, Any]:
        """Guided: each row has two."""
        return {
            "sample": noise(2 * rows, 4, side // 8, side // 8), "timestep": torch.tensor(500, device=machine.device),
            "encoder_hidden_states": noise(2 * rows, 77, 32 if tiny else 2048),
            "added_cond_kwargs": {
                "text_embeds": noise(2 * rows, 32 if tiny else 1280), "time_ids": noise(2 * rows, 6),
            },
        }  # fmt: skip

    def qwen() -> QwenImageTransformer2DModel:
        small = {
            "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32,
            "axes_dims_rope": (4, 4, 8),
        }  # fmt: skip
        return QwenImageTransformer2DModel(**(small if tiny else {}))

    def sdxl() -> UNet2DConditionModel:
        return UNet2DConditionModel(
            sample_size=128, block_out_channels=(16, 32, 32) if tiny else (320, 640, 1280),
            layers_per_block=1 if tiny else 2, norm_num_groups=4 if tiny else 32,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=2 if tiny else (5, 10, 20), transformer_layers_per_block=1 if tiny else (1, 2, 10),
            use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=8 if tiny else 256,
            projection_class_embeddings_input_dim=80 if tiny else 2816, cross_attention_dim=32 if tiny else 2048,
        ).to(memory_format=torch.channels_last)  # fmt: skip

    return [
        Network("FLUX.1", lambda: flux_transformer(machine), flux_inputs),
        Network("Qwen-Image", qwen, qwen_inputs),
        Network("SDXL", sdxl, sdxl_inputs),
    ]
