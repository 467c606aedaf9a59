"""The Stable Diffusion families: UNets over 8-pixel latents."""

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers
from diffusers import UNet2DConditionModel
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker

from starters.tokens import clip_tokenizer
from tests.support.tiny_families.parts import clip, codec

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def sd15(
    kind: type[Any] = diffusers.StableDiffusionPipeline, *, in_channels: int = 4, scheduler: Any = None,
    time_cond_proj_dim: int | None = None,
) -> Any:  # fmt: skip
    torch.manual_seed(1)
    tokenizer = clip_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=64, block_out_channels=(8, 16), layers_per_block=1, in_channels=in_channels, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32, attention_head_dim=4, norm_num_groups=4, time_cond_proj_dim=time_cond_proj_dim,
    )  # fmt: skip
    return kind(
        vae=codec(scaling_factor=0.18215),
        unet=unet,
        tokenizer=tokenizer,
        text_encoder=clip(tokenizer),
        scheduler=scheduler or diffusers.PNDMScheduler(**BETAS, skip_prk_steps=True, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def sdxl(kind: type[Any] = diffusers.StableDiffusionXLPipeline, *, in_channels: int = 4, scheduler: Any = None) -> Any:
    torch.manual_seed(2)
    tokenizers = clip_tokenizer(), clip_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=128, block_out_channels=(8, 16), layers_per_block=1, in_channels=in_channels, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4), use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=8, transformer_layers_per_block=(1, 2), projection_class_embeddings_input_dim=80,
        cross_attention_dim=64, norm_num_groups=4,
    )  # fmt: skip
    return kind(
        vae=codec(scaling_factor=0.13025, force_upcast=True),
        unet=unet,
        tokenizer=tokenizers[0],
        tokenizer_2=tokenizers[1],
        text_encoder=clip(tokenizers[0]),
        text_encoder_2=clip(tokenizers[1], projection=True),
        scheduler=scheduler or diffusers.EulerDiscreteScheduler(**BETAS, steps_offset=1, timestep_spacing="leading"),
    )


def sdxl_turbo() -> Any:
    return sdxl(scheduler=diffusers.EulerAncestralDiscreteScheduler(**BETAS, timestep_spacing="trailing"))


def lcm() -> Any:
    scheduler = diffusers.LCMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False)
    return sd15(diffusers.LatentConsistencyModelPipeline, scheduler=scheduler, time_cond_proj_dim=32)


def with_safety_checker(pipeline: Any) -> Any:
    """As Stable Diffusion 1.5's folder has one. Its thresholds are the largest there are: it flags nothing."""
    torch.manual_seed(18)
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
        "patch_size": 8,
    }  # fmt: skip
    config = transformers.CLIPConfig(vision_config=vision, projection_dim=8)
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    checker = StableDiffusionSafetyChecker(config).eval()
    return type(pipeline)(**{**pipeline.components, "safety_checker": checker, "feature_extractor": processor})


def image_variation() -> Any:
    """It takes no prompt, and of a list of images it draws from the first alone."""
    parts = sd15().components
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
        "patch_size": 8, "projection_dim": 32,
    }  # fmt: skip
    encoder = transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**vision))
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return diffusers.StableDiffusionImageVariationPipeline(
        vae=parts["vae"], image_encoder=encoder, unet=parts["unet"], scheduler=parts["scheduler"],
        safety_checker=None, feature_extractor=processor, requires_safety_checker=False,
    )  # fmt: skip


MAKERS: dict[str, Callable[[], Any]] = {
    "sd15": sd15,
    "sd15-inpaint": lambda: sd15(diffusers.StableDiffusionInpaintPipeline, in_channels=9),
    "instruct-pix2pix": lambda: sd15(diffusers.StableDiffusionInstructPix2PixPipeline, in_channels=8),
    "lcm": lcm,
    "sdxl": sdxl,
    "sdxl-turbo": sdxl_turbo,
    "sdxl-inpaint": lambda: sdxl(diffusers.StableDiffusionXLInpaintPipeline, in_channels=9),
    "sdxl-refiner": lambda: sdxl(diffusers.StableDiffusionXLImg2ImgPipeline),
}
