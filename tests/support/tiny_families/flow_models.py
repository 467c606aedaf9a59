"""Transformers that draw from text: SD 3, FLUX.1, Qwen-Image, Z-Image, Chroma, HiDream and others."""

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers
from tokenizers.processors import TemplateProcessing

from starters.architectures import clip_config, qwen_config
from starters.tokens import clip_tokenizer
from tests.support.tiny_families.parts import (
    clip,
    codec,
    flow,
    flux_codec,
    gemma,
    gemma_tokenizer,
    qwen_tokenizer,
    t5,
    t5_tokenizer,
)
from tests.support.tiny_families.qwen import qwen_codec, qwen_scheduler, qwen_transformer, qwen_vl


def sd3(kind: type[Any] = diffusers.StableDiffusion3Pipeline) -> Any:
    torch.manual_seed(3)
    tokenizer = clip_tokenizer()
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=128, patch_size=2, in_channels=16, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=64, caption_projection_dim=32, pooled_projection_dim=64, out_channels=16,
        pos_embed_max_size=192,
    )  # fmt: skip
    return kind(
        transformer=transformer,
        scheduler=flow(shift=3.0),
        vae=codec(16, scaling_factor=1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=clip(tokenizer, projection=True),
        tokenizer=tokenizer,
        text_encoder_2=clip(tokenizer, projection=True),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5(64),
        tokenizer_3=t5_tokenizer(),
    )


def flux(kind: type[Any] = diffusers.FluxPipeline, *, in_channels: int = 64, guidance_embeds: bool = True) -> Any:
    torch.manual_seed(4)
    tokenizer = clip_tokenizer()
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=in_channels, out_channels=64, num_layers=1, num_single_layers=1,
        attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8], guidance_embeds=guidance_embeds,
    )  # fmt: skip
    return kind(
        transformer=transformer,
        scheduler=flow(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, shift=3.0),
        vae=flux_codec(),
        text_encoder=clip(tokenizer),
        tokenizer=tokenizer,
        text_encoder_2=t5(),
        tokenizer_2=t5_tokenizer(),
    )


def qwen_image() -> Any:
    torch.manual_seed(7)
    tokenizer = qwen_tokenizer()
    return diffusers.QwenImagePipeline(
        transformer=qwen_transformer(),
        vae=qwen_codec(),
        scheduler=qwen_scheduler(),
        text_encoder=qwen_vl(tokenizer),
        tokenizer=tokenizer,
    )


def z_image() -> Any:
    torch.manual_seed(9)
    tokenizer = qwen_tokenizer()
    transformer = diffusers.ZImageTransformer2DModel(
        all_patch_size=(2,), all_f_patch_size=(1,), in_channels=16, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2,
        n_kv_heads=2, norm_eps=1e-5, qk_norm=True, cap_feat_dim=32, rope_theta=256.0, t_scale=1000.0,
        axes_dims=[8, 4, 4], axes_lens=[1536, 512, 512],
    )  # fmt: skip
    with torch.no_grad():  # uninitialised memory otherwise
        transformer.x_pad_token.fill_(1)
        transformer.cap_pad_token.fill_(1)
    return diffusers.ZImagePipeline(
        transformer=transformer,
        vae=codec(16, scaling_factor=0.3611, shift_factor=0.1159),
        scheduler=flow(shift=3.0),
        text_encoder=transformers.Qwen3Model(qwen_config(len(tokenizer), width=32, layers=3)),
        tokenizer=tokenizer,
    )


def sana(kind: type[Any] = diffusers.SanaPipeline, scheduler: Any = None, **options: Any) -> Any:
    """32 pixels to a latent."""
    torch.manual_seed(10)
    tokenizer = gemma_tokenizer()
    blocks, none = ("ResBlock",) * 6, ((),) * 6
    vae = diffusers.AutoencoderDC(
        in_channels=3, latent_channels=8, attention_head_dim=2, encoder_block_types=blocks,
        decoder_block_types=blocks, encoder_block_out_channels=(8,) * 6, decoder_block_out_channels=(8,) * 6,
        encoder_qkv_multiscales=none, decoder_qkv_multiscales=none, encoder_layers_per_block=(1,) * 6,
        decoder_layers_per_block=(1,) * 6, downsample_block_type="conv", upsample_block_type="interpolate",
        decoder_norm_types="rms_norm", decoder_act_fns="silu", scaling_factor=0.41407,
    )  # fmt: skip
    transformer = diffusers.SanaTransformer2DModel(
        patch_size=1, in_channels=8, out_channels=8, num_layers=1, num_attention_heads=2, attention_head_dim=4,
        num_cross_attention_heads=2, cross_attention_head_dim=4, cross_attention_dim=8, caption_channels=16,
        sample_size=32, **options,
    )  # fmt: skip
    return kind(
        transformer=transformer,
        vae=vae,
        scheduler=scheduler or flow(shift=3.0),
        text_encoder=gemma(tokenizer),
        tokenizer=tokenizer,
    )


def sana_sprint() -> Any:
    return sana(
        diffusers.SanaSprintPipeline, diffusers.SCMScheduler(), qk_norm="rms_norm_across_heads", guidance_embeds=True
    )


def pixart(kind: type[Any] = diffusers.PixArtSigmaPipeline) -> Any:
    torch.manual_seed(11)
    transformer = diffusers.PixArtTransformer2DModel(
        sample_size=128, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=3, caption_channels=32,
        in_channels=4, cross_attention_dim=24, out_channels=8, attention_bias=True, activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000, use_additional_conditions=False, norm_type="ada_norm_single",
        norm_elementwise_affine=False, norm_eps=1e-6,
    )  # fmt: skip
    return kind(
        transformer=transformer,
        vae=codec(scaling_factor=0.13025),
        scheduler=diffusers.DPMSolverMultistepScheduler(),
        text_encoder=t5(),
        tokenizer=t5_tokenizer(),
    )


def lumina2() -> Any:
    torch.manual_seed(12)
    tokenizer = gemma_tokenizer()
    transformer = diffusers.Lumina2Transformer2DModel(
        sample_size=128, patch_size=2, in_channels=16, hidden_size=16, num_layers=2, num_refiner_layers=1,
        num_attention_heads=2, num_kv_heads=1, multiple_of=16, norm_eps=1e-5, axes_dim_rope=(4, 2, 2),
        axes_lens=(300, 512, 512), cap_feat_dim=16,
    )  # fmt: skip
    return diffusers.Lumina2Pipeline(
        transformer=transformer,
        vae=codec(16, scaling_factor=0.3611, shift_factor=0.1159),
        scheduler=flow(shift=6.0),
        text_encoder=gemma(tokenizer, layers=2),
        tokenizer=tokenizer,
    )


def chroma() -> Any:
    torch.manual_seed(13)
    transformer = diffusers.ChromaTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=[4, 4, 8], approximator_hidden_dim=32, approximator_layers=1,
        approximator_num_channels=16,
    )  # fmt: skip
    return diffusers.ChromaPipeline(
        transformer=transformer, scheduler=flow(shift=1.0), vae=flux_codec(), text_encoder=t5(),
        tokenizer=t5_tokenizer(),
    )  # fmt: skip


def hidream() -> Any:
    """It scales every size to its own area."""
    torch.manual_seed(14)
    tokenizers = [clip_tokenizer(length=128) for _ in range(2)]
    transformer = diffusers.HiDreamImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=8,
        num_attention_heads=4, caption_channels=[32, 32], text_emb_dim=64, num_routed_experts=4,
        num_activated_experts=2, axes_dims_rope=(4, 2, 2), max_resolution=(128, 128), llama_layers=(0, 1),
    ).eval()  # fmt: skip
    encoders = [transformers.CLIPTextModelWithProjection(clip_config(len(tokenizers[0]), 32, 2, 128)) for _ in range(2)]
    llama_tokenizer = qwen_tokenizer()
    llama_tokenizer.pad_token = "<|endoftext|>"
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(llama_tokenizer) + 8, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2,
        )
    )  # fmt: skip
    llama.generation_config.pad_token_id = 1
    return diffusers.HiDreamImagePipeline(
        transformer=transformer,
        scheduler=flow(shift=3.0),
        vae=codec(16, scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=encoders[0],
        tokenizer=tokenizers[0],
        text_encoder_2=encoders[1],
        tokenizer_2=tokenizers[1],
        text_encoder_3=t5(),
        tokenizer_3=t5_tokenizer(),
        text_encoder_4=llama,
        tokenizer_4=llama_tokenizer,
    )


def cogview4() -> Any:
    torch.manual_seed(15)
    backend = qwen_tokenizer().backend_tokenizer
    mark = "<|im_start|>"
    backend.post_processor = TemplateProcessing(single=f"{mark} $A", special_tokens=[(mark, backend.token_to_id(mark))])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<|endoftext|>", model_max_length=1024, padding_side="left"
    )
    transformer = diffusers.CogView4Transformer2DModel(
        patch_size=2, in_channels=16, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        out_channels=16, text_embed_dim=32, time_embed_dim=8, condition_dim=4,
    )  # fmt: skip
    encoder = transformers.GlmModel(
        transformers.GlmConfig(
            vocab_size=len(tokenizer) + 8, hidden_size=32, intermediate_size=8, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, pad_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip
    scheduler = flow(
        base_shift=0.25, max_shift=0.75, base_image_seq_len=256, use_dynamic_shifting=True, time_shift_type="linear"
    )
    return diffusers.CogView4Pipeline(
        transformer=transformer, vae=codec(16, scaling_factor=1.0), scheduler=scheduler, text_encoder=encoder,
        tokenizer=tokenizer,
    )  # fmt: skip


def aura_flow() -> Any:
    torch.manual_seed(16)
    encoder = transformers.UMT5EncoderModel(
        transformers.UMT5Config(
            vocab_size=200, d_model=32, d_kv=8, d_ff=37, num_layers=1, num_heads=4, relative_attention_num_buckets=8
        )
    ).eval()
    transformer = diffusers.AuraFlowTransformer2DModel(
        sample_size=64, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1,
        attention_head_dim=8, num_attention_heads=4, caption_projection_dim=32, joint_attention_dim=32,
        out_channels=4, pos_embed_max_size=9216,
    )  # fmt: skip
    return diffusers.AuraFlowPipeline(
        transformer=transformer, scheduler=flow(shift=1.73), vae=codec(scaling_factor=0.13025), text_encoder=encoder,
        tokenizer=t5_tokenizer(),
    )  # fmt: skip


MAKERS: dict[str, Callable[[], Any]] = {
    "sd3": sd3,
    "flux": flux,
    "flux-schnell": lambda: flux(guidance_embeds=False),
    "qwen-image": qwen_image,
    "z-image": z_image,
    "sana": sana,
    "sana-sprint": sana_sprint,
    "pixart": pixart,
    "lumina2": lumina2,
    "chroma": chroma,
    "hidream": hidream,
    "cogview4": cogview4,
    "aura-flow": aura_flow,
    "flux-control": lambda: flux(diffusers.FluxControlPipeline, in_channels=128),
}
