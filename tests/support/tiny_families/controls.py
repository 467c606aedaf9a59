"""ControlNets and IP-Adapters for tiny checkpoints, with random weights: published ones begin as zeros."""

import inspect
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from safetensors.torch import save_file

EMBEDDING = (8, 8, 8, 16)  # channels of what reads a map
ENCODER_WIDTH = 16
VISION: dict[str, Any] = {
    "hidden_size": ENCODER_WIDTH, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
TOKENS = 4  # of an image, in the denoiser's attention: the layout has always four


def make_controlnet(denoiser: Any, folder: Path, seed: int = 1, modes: int | None = None) -> Path:
    """A ControlNet of the denoiser's architecture. `modes` is how many kinds of maps it has, if it has several."""
    torch.manual_seed(seed)
    if isinstance(denoiser, diffusers.UNet2DConditionModel) and modes is not None:
        net = _union(denoiser, modes)
    elif isinstance(denoiser, diffusers.UNet2DConditionModel):
        net = diffusers.ControlNetModel.from_unet(denoiser, conditioning_embedding_out_channels=EMBEDDING)
    elif isinstance(denoiser, diffusers.SD3Transformer2DModel):
        net = diffusers.SD3ControlNetModel.from_transformer(denoiser, num_layers=1, num_extra_conditioning_channels=0)
    else:
        config = {**denoiser.config, "num_layers": 1, "num_single_layers": 1, "num_mode": modes}
        config = {name: value for name, value in config.items() if not name.startswith("_") and name != "out_channels"}
        net = diffusers.FluxControlNetModel(**config)
    with torch.no_grad():
        for weight in net.parameters():
            if not weight.any():
                weight.normal_(std=0.5)
    net.save_pretrained(folder)
    return folder


def _union(denoiser: Any, modes: int) -> Any:
    accepted = inspect.signature(diffusers.ControlNetUnionModel.__init__).parameters
    config = {name: value for name, value in denoiser.config.items() if name in accepted}
    width = denoiser.config.block_out_channels[0]
    return diffusers.ControlNetUnionModel(
        **config, conditioning_embedding_out_channels=EMBEDDING, num_control_type=modes, num_trans_channel=width,
        num_trans_head=2, num_proj_channel=width,
    )  # fmt: skip


def in_published_order(pipeline: Any) -> Any:
    """The tiny Stable Diffusion with the blocks of its denoiser in the order of published ones, which T2I-Adapters
    count on: the last has no attention."""
    torch.manual_seed(3)
    blocks = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
    blocks["up_block_types"] = ("UpBlock2D", "CrossAttnUpBlock2D")
    pipeline.unet = diffusers.UNet2DConditionModel.from_config({**pipeline.unet.config, **blocks})
    return pipeline


def make_t2i_adapter(folder: Path, seed: int = 4, in_channels: int = 3) -> Path:
    """A T2I-Adapter for that denoiser: one level of features for each of its two blocks."""
    torch.manual_seed(seed)
    adapter = diffusers.T2IAdapter(in_channels=in_channels, channels=[8, 16], num_res_blocks=1, downscale_factor=8)
    for weight in adapter.parameters():
        weight.data.normal_(std=0.5)
    adapter.save_pretrained(folder)
    return folder


def make_image_encoder(folder: Path) -> Path:
    torch.manual_seed(2)
    config = transformers.CLIPVisionConfig(**VISION, projection_dim=ENCODER_WIDTH)
    transformers.CLIPVisionModelWithProjection(config).save_pretrained(folder)
    return folder


def make_two_encoders(folder: Path, kind: str) -> Path:
    """Of texts and images, a "CLIPModel" or "SiglipModel". What CLIP projects to is beside both configs."""
    torch.manual_seed(2)
    texts = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "CLIPModel":
        config: Any = transformers.CLIPConfig(text_config=texts, vision_config=VISION, projection_dim=ENCODER_WIDTH)
    else:
        config = transformers.SiglipConfig(text_config=texts, vision_config=VISION)
    getattr(transformers, kind)(config).save_pretrained(folder)
    return folder


def make_ip_adapter(denoiser: Any, file: Path, seed: int = 3) -> Path:
    """In the layout that is published for Stable Diffusion, or for FLUX.1."""
    torch.manual_seed(seed)
    if isinstance(denoiser, diffusers.UNet2DConditionModel):
        width = denoiser.config.cross_attention_dim
        layers = [module for name, module in _attentions(denoiser) if name.endswith("attn2")]
        sizes = {f"ip_adapter.{2 * i + 1}": module.to_k.weight.shape for i, module in enumerate(layers)}
    else:
        width = denoiser.config.joint_attention_dim
        inner = denoiser.config.attention_head_dim * denoiser.config.num_attention_heads
        sizes = {f"ip_adapter.{i}": (inner, width) for i in range(denoiser.config.num_layers)}
    tensors = {
        "image_proj.proj.weight": torch.randn(TOKENS * width, ENCODER_WIDTH),
        "image_proj.proj.bias": torch.randn(TOKENS * width),
        "image_proj.norm.weight": torch.ones(width),
        "image_proj.norm.bias": torch.zeros(width),
        **{f"{name}.{part}_ip.weight": torch.randn(*size) for name, size in sizes.items() for part in ("to_k", "to_v")},
    }
    if not isinstance(denoiser, diffusers.UNet2DConditionModel):
        biases = {
            name.replace("weight", "bias"): torch.zeros(t.shape[0]) for name, t in tensors.items() if "_ip" in name
        }
        tensors |= biases
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, file)
    return file


def _attentions(denoiser: Any) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in denoiser.named_modules() if name.endswith(("attn1", "attn2"))]
