"""Transformers of 2025 and 2026 that draw from text: Krea 2, Ideogram 4, HunyuanImage 2.1 and others."""

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers

from starters.architectures import klein_codec, qwen_config
from starters.tokens import clip_tokenizer
from tests.support.tiny_families.parts import (
    clip,
    codec,
    flow,
    flux_codec,
    gemma,
    gemma_tokenizer,
    mistral3_config,
    qwen_tokenizer,
    stirred,
    t5,
    t5_tokenizer,
)
from tests.support.tiny_families.qwen import (
    qwen3_vl,
    qwen3_vl_processor,
    qwen_codec,
    qwen_scheduler,
    qwen_vl,
    qwen_vl_processor,
)


def wan_codec() -> Any:
    """A video codec, as Wan's is: 8 pixels to a latent."""
    return diffusers.AutoencoderKLWan(
        base_dim=6, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )


def flux2_codec(latent_channels: int = 16) -> Any:
    """FLUX.2's: 8 pixels to a latent, whose patches of 2 x 2 are normalised."""
    return klein_codec(channels=(8, 8, 16, 16), latent_channels=latent_channels)


def krea2(*, layers: tuple[int, ...] = (0, 1, 2)) -> Any:
    """`layers` are those of the text encoder that are read."""
    torch.manual_seed(20)
    tokenizer = qwen_tokenizer()
    transformer = diffusers.Krea2Transformer2DModel(
        in_channels=64, num_layers=2, attention_head_dim=16, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=32, timestep_embed_dim=8, text_hidden_dim=16, num_text_layers=len(layers),
        text_num_attention_heads=2, text_num_key_value_heads=1, text_intermediate_size=16,
        num_layerwise_text_blocks=1, num_refiner_text_blocks=1, axes_dims_rope=(8, 4, 4), rope_theta=1000.0,
    )  # fmt: skip
    return diffusers.Krea2Pipeline(
        transformer=stirred(transformer),
        vae=qwen_codec(),
        scheduler=flow(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, max_image_seq_len=6400),
        text_encoder=qwen3_vl(tokenizer, layers=max(layers)).model,
        tokenizer=tokenizer,
        text_encoder_select_layers=layers,
    )


def ideogram4() -> Any:
    torch.manual_seed(21)
    tokenizer = qwen_tokenizer()
    transformers_ = [
        diffusers.Ideogram4Transformer2DModel(
            in_channels=64, num_layers=1, attention_head_dim=16, num_attention_heads=2, intermediate_size=32,
            adaln_dim=16, llm_features_dim=16 * 13, mrope_section=(4, 2, 2),
        )
        for _ in range(2)
    ]  # fmt: skip
    return diffusers.Ideogram4Pipeline(
        transformer=transformers_[0],
        unconditional_transformer=transformers_[1],
        vae=flux2_codec(),
        scheduler=flow(),
        text_encoder=qwen3_vl(tokenizer, layers=36).model,
        tokenizer=tokenizer,
        prompt_enhancer_head=None,
    )


def ernie_image() -> Any:
    torch.manual_seed(22)
    tokenizer = qwen_tokenizer()
    config = mistral3_config(tokenizer, layers=3)
    transformer = diffusers.ErnieImageTransformer2DModel(
        hidden_size=32, num_attention_heads=2, num_layers=1, ffn_hidden_size=32, in_channels=64, out_channels=64,
        text_in_dim=16, rope_axes_dim=(4, 6, 6),
    )  # fmt: skip
    return diffusers.ErnieImagePipeline(
        transformer=stirred(transformer), vae=flux2_codec(), scheduler=flow(shift=4.0),
        text_encoder=transformers.Mistral3Model(config), tokenizer=tokenizer, pe=None, pe_tokenizer=None,
    )  # fmt: skip


def longcat_image(kind: type[Any] | None = None) -> Any:
    """It needs torchvision."""
    torch.manual_seed(23)
    tokenizer = qwen_tokenizer()
    transformer = diffusers.LongCatImageTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=[4, 6, 6],
    )  # fmt: skip
    return (kind or diffusers.LongCatImagePipeline)(
        transformer=stirred(transformer),
        vae=flux_codec(),
        scheduler=flow(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, shift=3.0),
        text_encoder=qwen_vl(tokenizer),
        tokenizer=tokenizer,
        text_processor=qwen_vl_processor(tokenizer),
    )


def ovis_image() -> Any:
    torch.manual_seed(24)
    tokenizer = qwen_tokenizer()
    transformer = diffusers.OvisImageTransformer2DModel(
        patch_size=1, in_channels=64, out_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    return diffusers.OvisImagePipeline(
        transformer=stirred(transformer),
        vae=flux_codec(),
        scheduler=flow(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, shift=3.0),
        text_encoder=transformers.Qwen3Model(qwen_config(len(tokenizer), width=32, layers=2)),
        tokenizer=tokenizer,
    )


def nucleusmoe_image() -> Any:
    """It needs torchvision."""
    torch.manual_seed(25)
    tokenizer = qwen_tokenizer()
    transformer = diffusers.NucleusMoEImageTransformer2DModel(
        patch_size=2, in_channels=64, out_channels=16, num_layers=4, attention_head_dim=16, num_attention_heads=2,
        num_key_value_heads=2, joint_attention_dim=16, axes_dims_rope=(8, 4, 4), num_experts=4,
        moe_intermediate_dim=16, capacity_factors=[8.0] * 4,
    )  # fmt: skip
    return diffusers.NucleusMoEImagePipeline(
        transformer=stirred(transformer), vae=qwen_codec(), scheduler=qwen_scheduler(),
        text_encoder=qwen3_vl(tokenizer, layers=8), processor=qwen3_vl_processor(tokenizer),
    )  # fmt: skip


def hunyuan_image(*, guided: bool = True) -> Any:
    torch.manual_seed(26)
    tokenizer = qwen_tokenizer()
    guider = diffusers.guiders.AdaptiveProjectedMixGuidance if guided else None
    return diffusers.HunyuanImagePipeline(
        transformer=hunyuan_transformer(4, text_embed_2_dim=32, guidance_embeds=not guided),
        vae=diffusers.AutoencoderKLHunyuanImage(
            in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(32, 32, 32, 32, 32, 32),
            layers_per_block=1, scaling_factor=0.75289, spatial_compression_ratio=32, sample_size=384,
        ),
        scheduler=flow(shift=5.0),
        text_encoder=qwen_vl(tokenizer),
        tokenizer=tokenizer,
        text_encoder_2=transformers.T5EncoderModel(
            transformers.T5Config(
                vocab_size=384, d_model=32, d_kv=8, d_ff=37, num_layers=1, num_heads=4,
                relative_attention_num_buckets=8, feed_forward_proj="gated-gelu",
            )
        ).eval(),
        tokenizer_2=transformers.ByT5Tokenizer(),
        guider=guider and guider(adaptive_projected_guidance_start_step=2),
        ocr_guider=guider and guider(adaptive_projected_guidance_start_step=3),
    )  # fmt: skip


def hunyuan_transformer(channels: int, **options: Any) -> Any:
    return diffusers.HunyuanImageTransformer2DModel(
        in_channels=channels, num_attention_heads=2, attention_head_dim=16, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, text_embed_dim=16, **{"patch_size": (1, 1), "out_channels": channels,
        "rope_axes_dim": (8, 8), **options},
    )  # fmt: skip


def kandinsky5(kind: type[Any] | None = None, *, visual_cond: bool = False) -> Any:
    """It needs torchvision."""
    torch.manual_seed(27)
    tokenizer, tokenizer_2 = qwen_tokenizer(), clip_tokenizer()
    transformer = diffusers.Kandinsky5Transformer3DModel(
        in_visual_dim=16, in_text_dim=16, in_text_dim2=32, time_dim=16, out_visual_dim=16, patch_size=(1, 2, 2),
        model_dim=16, ff_dim=32, num_text_blocks=1, num_visual_blocks=2, axes_dims=(4, 6, 6), visual_cond=visual_cond,
    )  # fmt: skip
    return (kind or diffusers.Kandinsky5T2IPipeline)(
        transformer=stirred(transformer), vae=flux_codec(), scheduler=flow(shift=7.0), text_encoder=qwen_vl(tokenizer),
        tokenizer=qwen_vl_processor(tokenizer), text_encoder_2=clip(tokenizer_2), tokenizer_2=tokenizer_2,
    )  # fmt: skip


def bria() -> Any:
    torch.manual_seed(28)
    transformer = diffusers.BriaTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=[0, 8, 8],
    )  # fmt: skip
    return diffusers.BriaPipeline(
        transformer=stirred(transformer), vae=codec(shift_factor=0.0, scaling_factor=0.13025),
        scheduler=flow(shift=3.0), text_encoder=t5(), tokenizer=t5_tokenizer(),
    )  # fmt: skip


def bria_fibo(kind: type[Any] | None = None) -> Any:
    """16 pixels to a latent."""
    torch.manual_seed(29)
    tokenizer = qwen_tokenizer()
    tokenizer.pad_token = "<|endoftext|>"
    transformer = diffusers.BriaFiboTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=64, text_encoder_dim=32, axes_dims_rope=[0, 8, 8],
    )  # fmt: skip
    encoder = transformers.SmolLM3ForCausalLM(
        transformers.SmolLM3Config(
            vocab_size=128256, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, pad_token_id=tokenizer.pad_token_id, bos_token_id=0,
            eos_token_id=0,
        )
    ).eval()  # fmt: skip
    vae = diffusers.AutoencoderKLWan(
        base_dim=6, decoder_base_dim=6, num_res_blocks=1, in_channels=12, out_channels=12, patch_size=2, z_dim=16,
        scale_factor_spatial=16, scale_factor_temporal=4, temperal_downsample=[False, True, True], is_residual=True,
        dim_mult=[1, 1, 1, 1],
    )  # fmt: skip
    return (kind or diffusers.BriaFiboPipeline)(
        transformer=stirred(transformer),
        vae=vae,
        scheduler=flow(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15),
        text_encoder=encoder,
        tokenizer=tokenizer,
    )


def prx() -> Any:
    """It needs ftfy. Published ones have T5Gemma's encoder, whose class in transformers takes no small config."""
    torch.manual_seed(30)
    tokenizer = gemma_tokenizer()
    tokenizer.model_max_length = 256
    transformer = diffusers.PRXTransformer2DModel(
        patch_size=2, in_channels=16, context_in_dim=16, hidden_size=32, mlp_ratio=2.0, num_heads=2, depth=1,
        axes_dim=[8, 8],
    )  # fmt: skip
    return diffusers.PRXPipeline(
        transformer=stirred(transformer), vae=flux_codec(), scheduler=flow(shift=3.0),
        text_encoder=gemma(tokenizer), tokenizer=tokenizer,
    )  # fmt: skip


def prx_pixel() -> Any:
    """It draws pixels, without a codec. It needs ftfy."""
    torch.manual_seed(31)
    tokenizer = qwen_tokenizer()
    transformer = diffusers.PRXTransformer2DModel(
        patch_size=16, in_channels=3, context_in_dim=32, hidden_size=32, mlp_ratio=2.0, num_heads=2, depth=1,
        axes_dim=[8, 8], bottleneck_size=16, resolution_embeds=True,
    )  # fmt: skip
    return diffusers.PRXPixelPipeline(
        transformer=stirred(transformer), scheduler=flow(shift=3.0),
        text_encoder=transformers.Qwen3Model(qwen_config(len(tokenizer), width=32, layers=2)), tokenizer=tokenizer,
    )  # fmt: skip


MAKERS: dict[str, Callable[[], Any]] = {
    "krea2": krea2,
    "ideogram4": ideogram4,
    "ernie-image": ernie_image,
    "longcat-image": longcat_image,
    "ovis-image": ovis_image,
    "nucleusmoe-image": nucleusmoe_image,
    "hunyuan-image": hunyuan_image,
    "hunyuan-image-distilled": lambda: hunyuan_image(guided=False),
    "kandinsky5": kandinsky5,
    "bria": bria,
    "fibo": bria_fibo,
    "prx": prx,
    "prx-pixel": prx_pixel,
}
