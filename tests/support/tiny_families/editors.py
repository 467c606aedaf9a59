"""Families of 2025 and 2026 that read images: Qwen-Image 2.1, LongCat, JoyImage, DreamLite, OmniGen and others."""

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers

from starters.architectures import qwen_config
from tests.support.tiny_families.channels import qwen_image_21
from tests.support.tiny_families.from_text import (
    bria_fibo,
    flux2_codec,
    hunyuan_transformer,
    kandinsky5,
    longcat_image,
    wan_codec,
)
from tests.support.tiny_families.parts import codec, flow, qwen_tokenizer, stirred
from tests.support.tiny_families.qwen import (
    qwen3_vl,
    qwen3_vl_processor,
    qwen_vl,
)
from tests.support.tiny_families.references import klein


def joyimage_edit(*, plus: bool = False) -> Any:
    """It needs torchvision."""
    torch.manual_seed(42)
    tokenizer = qwen_tokenizer()
    denoiser = diffusers.JoyImageEditPlusTransformer3DModel if plus else diffusers.JoyImageEditTransformer3DModel
    transformer = denoiser(
        patch_size=[1, 2, 2], in_channels=16, hidden_size=32, num_attention_heads=2, text_dim=16, num_layers=1,
        rope_dim_list=[4, 6, 6], theta=256,
    )  # fmt: skip
    return (diffusers.JoyImageEditPlusPipeline if plus else diffusers.JoyImageEditPipeline)(
        transformer=stirred(transformer), vae=wan_codec(), scheduler=flow(shift=3.0),
        text_encoder=qwen3_vl(tokenizer), tokenizer=tokenizer,
        processor=qwen3_vl_processor(tokenizer, max_pixels=128 * 128),
    )  # fmt: skip


def bria_fibo2() -> Any:
    """It needs torchvision."""
    torch.manual_seed(43)
    tokenizer = qwen_tokenizer()
    transformer = diffusers.BriaFibo2Transformer2DModel(
        in_channels=16, patch_size=2, dim=32, n_layers=6, n_refiner_layers=1, n_heads=2, cap_feat_dim=48,
        injection_layer_ids=(1, 2, 3, 4, 5), perceiver_num_layers=1, min_num_gist_tokens=4, max_num_gist_tokens=8,
        gist_step=2, gist_min_text_len=4, gist_max_text_len=32, axes_dims=(4, 6, 6), axes_lens=(4096, 512, 512),
    )  # fmt: skip
    return diffusers.BriaFibo2Pipeline(
        transformer=stirred(transformer), scheduler=flow(use_dynamic_shifting=True), vae=flux2_codec(),
        text_encoder=qwen3_vl(tokenizer, layers=36), processor=qwen3_vl_processor(tokenizer),
    )  # fmt: skip


def dreamlite(*, mobile: bool = False) -> Any:
    """It draws beside the reference, as the left half of both. It needs torchvision."""
    torch.manual_seed(44)
    tokenizer = qwen_tokenizer()
    vae = diffusers.AutoencoderTiny(
        encoder_block_out_channels=(8, 8, 8, 8), decoder_block_out_channels=(8, 8, 8, 8), num_encoder_blocks=(1,) * 4,
        num_decoder_blocks=(1,) * 4,
    )  # fmt: skip
    unet = diffusers.DreamLiteUNetModel(
        sample_size=128, block_out_channels=(8, 16, 16), layers_per_block=1, norm_num_groups=4,
        cross_attention_dim=16, attention_head_dim=8, transformer_layers_per_block=1,
    )  # fmt: skip
    return (diffusers.DreamLiteMobilePipeline if mobile else diffusers.DreamLitePipeline)(
        text_encoder=qwen3_vl(tokenizer), tokenizer=tokenizer, processor=qwen3_vl_processor(tokenizer), vae=vae,
        unet=stirred(unet), scheduler=flow(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.16),
    )  # fmt: skip


def z_image_omni() -> Any:
    torch.manual_seed(45)
    tokenizer = qwen_tokenizer()
    transformer = diffusers.ZImageTransformer2DModel(
        all_patch_size=(2,), all_f_patch_size=(1,), in_channels=16, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2,
        n_kv_heads=2, norm_eps=1e-5, qk_norm=True, cap_feat_dim=32, siglip_feat_dim=16, rope_theta=256.0,
        t_scale=1000.0, axes_dims=[8, 4, 4], axes_lens=[1536, 512, 512],
    )  # fmt: skip
    with torch.no_grad():  # uninitialised memory otherwise
        for name, weight in transformer.named_parameters():
            if name.endswith("pad_token"):
                weight.fill_(1)
    siglip = transformers.Siglip2VisionModel(
        transformers.Siglip2VisionConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_patches=256,
            patch_size=16,
        )
    ).eval()  # fmt: skip
    return diffusers.ZImageOmniPipeline(
        transformer=stirred(transformer),
        vae=codec(16, scaling_factor=0.3611, shift_factor=0.1159),
        scheduler=flow(shift=3.0),
        text_encoder=transformers.Qwen3Model(qwen_config(len(tokenizer), width=32, layers=3)),
        tokenizer=tokenizer,
        siglip=siglip,
        siglip_processor=transformers.Siglip2ImageProcessor(patch_size=16, max_num_patches=64),
    )


def hunyuan_refiner() -> Any:
    torch.manual_seed(46)
    tokenizer = qwen_tokenizer()
    return diffusers.HunyuanImageRefinerPipeline(
        scheduler=flow(shift=4.0),
        vae=diffusers.AutoencoderKLHunyuanImageRefiner(
            latent_channels=8, block_out_channels=(32, 32, 32, 32, 32), layers_per_block=1
        ),
        text_encoder=qwen_vl(tokenizer),
        tokenizer=tokenizer,
        transformer=stirred(
            hunyuan_transformer(
                32, out_channels=16, patch_size=(1, 1, 1), rope_axes_dim=(4, 6, 6), guidance_embeds=True
            )
        ),
    )


def omnigen() -> Any:
    torch.manual_seed(47)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=qwen_tokenizer().backend_tokenizer, pad_token="<|endoftext|>", bos_token="<|im_start|>",
        eos_token="<|im_end|>", model_max_length=131072,
    )  # fmt: skip
    transformer = diffusers.OmniGenTransformer2DModel(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=2, intermediate_size=32, num_layers=1,
        in_channels=4, time_step_dim=8, vocab_size=len(tokenizer) + 8, pad_token_id=tokenizer.pad_token_id,
        rope_scaling={"long_factor": [1.0] * 8, "short_factor": [1.0] * 8},
    )  # fmt: skip
    return diffusers.OmniGenPipeline(
        transformer=stirred(transformer), vae=codec(scaling_factor=0.13025),
        scheduler=flow(invert_sigmas=True, num_train_timesteps=1), tokenizer=tokenizer,
    )  # fmt: skip


MAKERS: dict[str, Callable[[], Any]] = {
    "qwen-image-21": qwen_image_21,
    "longcat-edit": lambda: longcat_image(diffusers.LongCatImageEditPipeline),
    "joyimage-edit": joyimage_edit,
    "joyimage-edit-plus": lambda: joyimage_edit(plus=True),
    "kandinsky5-i2i": lambda: kandinsky5(diffusers.Kandinsky5I2IPipeline, visual_cond=True),
    "fibo-edit": lambda: bria_fibo(diffusers.BriaFiboEditPipeline),
    "fibo2": bria_fibo2,
    "dreamlite": dreamlite,
    "dreamlite-mobile": lambda: dreamlite(mobile=True),
    "z-image-omni": z_image_omni,
    "hunyuan-refiner": hunyuan_refiner,
    "klein-kv": lambda: klein(kind=diffusers.Flux2KleinKVPipeline),
    "omnigen": omnigen,
}
