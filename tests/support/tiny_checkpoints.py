"""Tiny checkpoints of real pipeline classes with seeded random weights."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
)
from safetensors.torch import save_file
from transformers import CLIPTextModel, CLIPTextModelWithProjection, Qwen3ForCausalLM

from starters.architectures import (
    READ_LAYERS,
    clip_config,
    klein,
    klein_codec,
    klein_transformer,
    qwen_config,
    stable_diffusion,
    tiny_codec,
    unet,
)
from starters.tokens import clip_tokenizer, qwen_tokenizer

QKV = ("to_q.weight", "to_k.weight", "to_v.weight")


def make_sd(folder: Path) -> Path:
    """A UNet: text to image, image to image, inpainting."""
    _tiny_sd().save_pretrained(folder)
    return folder


def make_sd3(folder: Path) -> Path:
    """A flow-matching transformer with image to image and inpainting."""
    torch.manual_seed(2)
    tokenizer = clip_tokenizer()
    encoders = [CLIPTextModelWithProjection(clip_config(len(tokenizer), 32)) for _ in range(2)]
    transformer = SD3Transformer2DModel(
        sample_size=16, patch_size=1, in_channels=16, num_layers=1, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=64, caption_projection_dim=32, pooled_projection_dim=64, out_channels=16,
        pos_embed_max_size=64,
    )  # fmt: skip
    StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_vae(latent_channels=16),  # inpainting requires 16
        text_encoder=encoders[0],
        tokenizer=tokenizer,
        text_encoder_2=encoders[1],
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=None,
        tokenizer_3=None,
    ).save_pretrained(folder)
    return folder


def make_klein(folder: Path) -> Path:
    """A few-step transformer with native references."""
    torch.manual_seed(3)
    tokenizer = qwen_tokenizer()
    text = Qwen3ForCausalLM(qwen_config(len(tokenizer), width=64, layers=READ_LAYERS))
    transformer = klein_transformer(latent_channels=16, heads=2, layers=(1, 1), text_width=64)
    klein(klein_codec(channels=(8, 8, 16, 16), latent_channels=16), transformer, tokenizer, text).save_pretrained(
        folder
    )
    return folder


def make_single_file(folder: Path, *, keep_weights: bool = False) -> tuple[Path, Path]:
    """The UNet in the original layout of Stable Diffusion: one .safetensors file, and its folder of configs, which may
    have the same weights."""
    tiny = _tiny_sd()
    pipeline = StableDiffusionPipeline(**{**tiny.components, "vae": _vae()}, requires_safety_checker=False)
    pipeline.save_pretrained(folder / "configs")
    for weights in () if keep_weights else (folder / "configs").rglob("*.safetensors"):
        weights.unlink()
    tensors = {
        **{f"model.diffusion_model.{original_unet_name(k)}": v for k, v in pipeline.unet.state_dict().items()},
        **{f"first_stage_model.{_vae_key(k)}": _as_conv(k, v) for k, v in pipeline.vae.state_dict().items()},
        **{f"cond_stage_model.transformer.{_text_key(k)}": v for k, v in pipeline.text_encoder.state_dict().items()},
    }
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / "tiny.safetensors")
    return folder / "tiny.safetensors", folder / "configs"


def _tiny_sd() -> StableDiffusionPipeline:
    torch.manual_seed(1)
    tokenizer = clip_tokenizer()
    codec = tiny_codec(channels=8, blocks=(1, 2, 2, 2), decoder_blocks=(2, 2, 2, 1))
    network = unet(channels=(16, 32), text_width=32, sample_size=128)
    return stable_diffusion(codec, network, tokenizer, CLIPTextModel(clip_config(len(tokenizer), 32)))


def _vae(latent_channels: int = 4) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 8, 8, 16),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1,
        latent_channels=latent_channels,
        norm_num_groups=4,
        shift_factor=0.0,
    )


RESNET = {
    "norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0",
    "conv2": "out_layers.3", "conv_shortcut": "skip_connection",
}  # fmt: skip
UNET_ENDS = {
    "time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2", "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0", "conv_out": "out.2",
    "add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2",
}  # fmt: skip


def original_unet_name(key: str) -> str:
    """A diffusers name in the original's numbering, for one resnet per block."""
    for name, original in UNET_ENDS.items():
        if key.startswith(f"{name}."):
            return key.replace(name, original, 1)
    if match := re.match(r"mid_block\.(resnets|attentions)\.(\d)\.(.*)", key):
        number = 1 if match[1] == "attentions" else 2 * int(match[2])
        return f"middle_block.{number}.{_inner(match[1], match[3])}"
    match = re.match(r"(down|up)_blocks\.(\d)\.(\w+)\.(\d)\.(.*)", key)
    assert match, key
    side, block, part, layer, rest = match[1], int(match[2]), match[3], int(match[4]), match[5]
    if part == "downsamplers":
        return f"input_blocks.{2 * block + 2}.0.{rest.replace('conv', 'op', 1)}"
    if part == "upsamplers":
        return f"output_blocks.{2 * block + 1}.2.{rest}"
    name = f"input_blocks.{2 * block + layer + 1}" if side == "down" else f"output_blocks.{2 * block + layer}"
    return f"{name}.{int(part == 'attentions')}.{_inner(part, rest)}"


def original_z_image_name(key: str) -> str:
    """Name a weight of Z-Image's transformer as its first publisher and ComfyUI do, its projections fused."""
    for own, original in {
        "all_final_layer.2-1.": "final_layer.", "all_x_embedder.2-1.": "x_embedder.", "to_out.0.": "out.",
        "attention.norm_k.": "attention.k_norm.", "attention.norm_q.": "attention.q_norm.",
    }.items():  # fmt: skip
        key = key.replace(own, original)
    return key


def fused(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put the three projections of each attention into one weight: `qkv`."""
    made = {name: weight for name, weight in weights.items() if not name.endswith(QKV)}
    for name in (name for name in weights if name.endswith(QKV[0])):
        start = name.removesuffix(QKV[0])
        made[f"{start}qkv.weight"] = torch.cat([weights[f"{start}{each}"] for each in QKV])
    return made


def _inner(part: str, rest: str) -> str:
    if part == "attentions":
        return rest
    head, _, tail = rest.partition(".")
    return f"{RESNET[head]}.{tail}"


def _vae_key(key: str) -> str:
    key = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"mid.block_{int(m[1]) + 1}", key)
    key = key.replace("mid_block.attentions.0", "mid.attn_1")
    key = re.sub(r"down_blocks\.(\d)\.resnets", r"down.\1.block", key)
    key = re.sub(r"down_blocks\.(\d)\.downsamplers\.0", r"down.\1.downsample", key)
    key = re.sub(r"up_blocks\.(\d)\.resnets", lambda m: f"up.{3 - int(m[1])}.block", key)
    key = re.sub(r"up_blocks\.(\d)\.upsamplers\.0", lambda m: f"up.{3 - int(m[1])}.upsample", key)
    for name, original in {"conv_norm_out": "norm_out", "conv_shortcut": "nin_shortcut", "group_norm": "norm",
                         "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}.items():  # fmt: skip
        key = key.replace(name, original)
    return key


def _as_conv(key: str, tensor: torch.Tensor) -> torch.Tensor:
    """The original's attention projections are 1x1 convolutions."""
    return tensor[:, :, None, None] if re.search(r"to_(q|k|v|out\.0)\.weight", key) else tensor


def _text_key(key: str) -> str:
    return key if key.startswith("text_model.") else f"text_model.{key}"
