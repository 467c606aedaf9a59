"""Checkpoints for tests: real classes, random weights, a few hundred kilobytes, built in about a second each.

What they draw is noise. Their latents are 8 pixels wide as in the checkpoints that people serve.
"""

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from safetensors.torch import save_file
from transformers import CLIPTextModelWithProjection

from pipelines.starter import architectures

SEED = 7
WIDTH = 32  # of the text encoders
LAYERS_PER_BLOCK = 1


def make_sd(path: Path) -> Path:
    """Stable Diffusion: a UNet with text to image, image to image and inpainting."""
    _stable_diffusion().save_pretrained(path)
    return path


def make_sd_single_file(file: Path, config: Path) -> None:
    """Stable Diffusion as one .safetensors file in the layout it was first published in, and its folder of configs."""
    pipeline = _stable_diffusion()
    pipeline.vae = _autoencoder(latent_channels=4)
    pipeline.save_pretrained(config)
    weights = {
        **_renamed("model.diffusion_model.", pipeline.unet, _original_unet_name),
        **_renamed("first_stage_model.", pipeline.vae, _original_vae_name),
        **_renamed("cond_stage_model.transformer.", pipeline.text_encoder, _original_clip_name),
    }
    for weight_file in config.rglob("*.safetensors"):
        weight_file.unlink()
    save_file(weights, file)


def make_sd3(path: Path) -> Path:
    """Stable Diffusion 3: a flow-matching transformer with text to image, image to image and inpainting."""
    torch.manual_seed(SEED)
    tokenizer = architectures.clip_tokenizer()
    encoders = [CLIPTextModelWithProjection(architectures.clip_config(len(tokenizer), WIDTH)) for _ in range(2)]
    pipeline = StableDiffusion3Pipeline(
        transformer=SD3Transformer2DModel(
            sample_size=32,
            patch_size=2,
            in_channels=16,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=2 * WIDTH,
            caption_projection_dim=32,
            pooled_projection_dim=2 * WIDTH,
            out_channels=16,
            pos_embed_max_size=64,
        ),
        vae=_autoencoder(latent_channels=16, shift_factor=0.06),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=encoders[0],
        tokenizer=tokenizer,
        text_encoder_2=encoders[1],
        tokenizer_2=architectures.clip_tokenizer(),
        text_encoder_3=None,
        tokenizer_3=None,
    )
    pipeline.save_pretrained(path)
    return path


def make_klein(path: Path) -> Path:
    """FLUX.2 klein: a few-step transformer that takes references natively, and inpaints."""
    torch.manual_seed(SEED)
    pipeline = architectures.klein(codec_channels=(8, 8, 8, 16), heads=1, layers=(1, 1), text_width=WIDTH)
    pipeline.save_pretrained(path)
    return path


def _stable_diffusion() -> Any:
    torch.manual_seed(SEED)
    return architectures.stable_diffusion(
        latent_levels=3, codec_channels=8, unet_channels=(16, 32), text_width=WIDTH
    )


def _autoencoder(*, latent_channels: int, shift_factor: float | None = None) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 8, 8, 16),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=LAYERS_PER_BLOCK,
        latent_channels=latent_channels,
        norm_num_groups=8,
        shift_factor=shift_factor,
        use_quant_conv=shift_factor is None,
        use_post_quant_conv=shift_factor is None,
    )


def _renamed(prefix: str, module: torch.nn.Module, rename: Any) -> dict[str, torch.Tensor]:
    return {prefix + rename(name): tensor.contiguous() for name, tensor in module.state_dict().items()}


def _original_clip_name(name: str) -> str:
    return name if name.startswith("text_model.") else f"text_model.{name}"  # transformers 5.6 dropped the prefix


UNET_TOP = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
UNET_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}


def _original_unet_name(name: str) -> str:
    """down_blocks.1.resnets.0.norm1.weight -> input_blocks.4.0.in_layers.0.weight, and so on.

    The first layout numbers the blocks of a side through: each level has its layers and one down- or upsampler.
    """
    module, _, leaf = name.rpartition(".")
    if module in UNET_TOP:
        return f"{UNET_TOP[module]}.{leaf}"
    side, *rest = name.split(".")
    per_level = LAYERS_PER_BLOCK + 1
    if side == "mid_block":
        kind, index, *tail = rest
        number = {"resnets": 2 * int(index), "attentions": 1}[kind]
        return ".".join(["middle_block", str(number), *_unet_tail(kind, tail)])
    level, kind, index, *tail = rest
    if side == "down_blocks":
        number = 1 + int(level) * per_level + int(index)
        if kind == "downsamplers":
            return f"input_blocks.{number + LAYERS_PER_BLOCK}.0.op.{leaf}"
        return ".".join([f"input_blocks.{number}", "01"[kind == "attentions"], *_unet_tail(kind, tail)])
    number = int(level) * per_level + int(index)
    if kind == "upsamplers":  # after the level's last layer: third there if that has attention, else second
        return f"output_blocks.{number + LAYERS_PER_BLOCK}.2.conv.{leaf}"
    return ".".join([f"output_blocks.{number}", "01"[kind == "attentions"], *_unet_tail(kind, tail)])


def _unet_tail(kind: str, tail: list[str]) -> list[str]:
    return [UNET_RESNET.get(tail[0], tail[0]), *tail[1:]] if kind == "resnets" else tail


def _original_vae_name(name: str) -> str:
    """encoder.down_blocks.0.resnets.1.conv1.weight -> encoder.down.0.block.1.conv1.weight; decoder levels run back."""
    part, *rest = name.split(".")
    if rest[0] == "conv_norm_out":
        return ".".join([part, "norm_out", *rest[1:]])
    if rest[0] == "mid_block":
        return _original_vae_middle(part, rest[1:])
    if rest[0] not in ("down_blocks", "up_blocks"):
        return name
    side, level, kind, index, *tail = rest
    if kind == "resnets":
        tail = [{"conv_shortcut": "nin_shortcut"}.get(tail[0], tail[0]), *tail[1:]]
    number = int(level) if side == "down_blocks" else 3 - int(level)
    where = {"resnets": f"block.{index}", "downsamplers": "downsample", "upsamplers": "upsample"}[kind]
    return ".".join([part, side.removesuffix("_blocks"), str(number), where, *tail])


def _original_vae_middle(part: str, rest: list[str]) -> str:
    kind, index, *tail = rest
    if kind == "resnets":
        return ".".join([part, "mid", f"block_{int(index) + 1}", *tail])
    names = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out": "proj_out"}
    tail = [names[tail[0]], tail[-1]]
    return ".".join([part, "mid", "attn_1", *tail])
