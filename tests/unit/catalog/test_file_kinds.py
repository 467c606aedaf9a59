"""What a file is by its header, in the names that the trainers of each kind publish, and where it belongs."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.weight_file.file import WeightFile
from server.errors import BadRequest
from server.flows.operators.checkpoints import CheckpointManager
from tests.support.gguf_files import Q8_0, write_gguf
from tests.support.weight_files import denoiser_file, flux_folder, inspect_checkpoint

Shapes = Mapping[str, tuple[int, ...]]
LORA = {
    "lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight": (4, 32),
    "lora_unet_down_blocks_0_attentions_0_proj_in.lora_up.weight": (32, 4),
    "lora_unet_down_blocks_0_attentions_0_proj_in.alpha": (1,),
}
KINDS: Mapping[str, tuple[Shapes, str, str]] = {
    "kohya": (LORA, "a LoRA adapter", "lora_folder"),
    "diffusers": (
        {"transformer.blocks.0.to_q.lora_A.weight": (4, 32), "transformer.blocks.0.to_q.lora_B.weight": (32, 4)},
        "a LoRA adapter",
        "loras",
    ),
    "lokr": (
        {
            "diffusion_model.layers.0.attention.to_q.lokr_w1": (2, 2),
            "diffusion_model.layers.0.attention.to_q.lokr_w2": (4, 4),
        },
        "a LoKr adapter",
        "lora_folder",
    ),
    "oft": ({"lora_unet_mid.oft_blocks": (2, 4, 4)}, "an OFT adapter", "lora_folder"),
    "bfl-control": (
        {
            "double_blocks.0.img_attn.proj.lora_A.weight": (4, 32),
            "double_blocks.0.img_attn.proj.lora_B.weight": (32, 4),
            "double_blocks.0.img_attn.norm.key_norm.scale": (8,),
        },
        "a LoRA adapter",
        "lora_folder",
    ),
    "vae": (
        {
            "encoder.conv_in.weight": (8, 3, 3, 3),
            "decoder.conv_in.weight": (8, 4, 3, 3),
            "quant_conv.weight": (8, 8, 1, 1),
        },
        "a VAE alone",
        "`vae`",
    ),
    "vae-of-a-whole-file": (
        {"first_stage_model.encoder.conv_in.weight": (8, 3, 3, 3), "first_stage_model.decoder.conv_in.weight": (8, 4)},
        "a VAE alone",
        "`vae`",
    ),
    "vae-prefixed": (
        {"vae.encoder.conv_in.weight": (8, 3, 3, 3), "vae.decoder.conv_in.bias": (8,)},
        "a VAE alone",
        "`vae`",
    ),
    "vae-qwen": (
        {
            "encoder.conv1.weight": (8, 3, 3, 3, 3),
            "decoder.middle.0.residual.0.gamma": (8, 1),
            "conv1.weight": (8, 8),
            "conv2.weight": (8, 8),
        },
        "a VAE alone",
        "`vae`",
    ),
    "vae-diffusers": (
        {
            "encoder.down_blocks.0.resnets.0.conv1.weight": (8, 8, 3, 3),
            "decoder.mid_block.attentions.0.to_q.weight": (8, 8),
        },
        "a VAE alone",
        "`vae`",
    ),
    "taesd": (
        {"taesd_decoder.1.weight": (8, 4, 3, 3), "taesd_encoder.0.weight": (8, 3)},
        "a tiny autoencoder",
        "`vae`",
    ),
    "taesd-diffusers": (
        {"decoder.layers.0.weight": (8, 4, 3, 3), "encoder.layers.0.weight": (8, 3, 3, 3)},
        "a tiny autoencoder",
        "`vae`",
    ),
    "clip-l": (
        {"text_model.embeddings.token_embedding.weight": (99, 8), "text_model.encoder.layers.0.mlp.fc1.weight": (8, 8)},
        "a text encoder",
        "`text_encoder`",
    ),
    "clip-l-of-today": (
        {"embeddings.token_embedding.weight": (99, 8), "encoder.layers.0.mlp.fc1.weight": (8, 8)},
        "a text encoder",
        "`text_encoder`",
    ),
    "clip-vision-of-today": (
        {"embeddings.patch_embedding.weight": (8, 3, 4, 4), "encoder.layers.0.mlp.fc1.weight": (8, 8)},
        "an image encoder",
        "image_encoder",
    ),
    "open-clip": (
        {
            "transformer.resblocks.0.attn.in_proj_weight": (24, 8),
            "token_embedding.weight": (99, 8),
            "logit_scale": (1,),
        },
        "a text encoder",
        "`text_encoder`",
    ),
    "t5xxl": (
        {
            "shared.weight": (99, 8),
            "encoder.block.0.layer.0.SelfAttention.q.weight": (8, 8),
            "encoder.final_layer_norm.weight": (8,),
        },
        "a text encoder",
        "`text_encoder`",
    ),
    "qwen-vl": (
        {
            "model.layers.0.self_attn.q_proj.weight": (8, 8),
            "visual.blocks.0.attn.qkv.weight": (24, 8),
            "lm_head.weight": (9, 8),
        },
        "a language model",
        "chat.toml",
    ),
    "clip-vision": (
        {"vision_model.encoder.layers.0.mlp.fc1.weight": (8, 8), "visual_projection.weight": (8, 8)},
        "an image encoder",
        "image_encoder",
    ),
    "clip-both": (
        {"vision_model.encoder.layers.0.mlp.fc1.weight": (8, 8), "text_model.encoder.layers.0.mlp.fc1.weight": (8, 8)},
        "an image encoder",
        "image_encoder",
    ),
    "embedding": ({"emb_params": (4, 768)}, "a textual-inversion embedding", "embedding_folder"),
    "embedding-sdxl": ({"clip_l": (4, 768), "clip_g": (4, 1280)}, "a textual-inversion embedding", "embedding_folder"),
    "embedding-diffusers": ({"<my-cat>": (1, 32)}, "a textual-inversion embedding", "embedding_folder"),
    "controlnet": (
        {"control_model.input_hint_block.0.weight": (16, 3, 3, 3), "control_model.zero_convs.0.0.weight": (8, 8, 1, 1)},
        "a ControlNet",
        "[[controlnets]]",
    ),
    "controlnet-diffusers": (
        {"controlnet_cond_embedding.conv_in.weight": (16, 3, 3, 3), "down_blocks.0.resnets.0.conv1.weight": (8, 8)},
        "a ControlNet",
        "[[controlnets]]",
    ),
    "controlnet-flux": (
        {"controlnet_x_embedder.weight": (8, 8), "transformer_blocks.0.attn.to_q.weight": (8, 8)},
        "a ControlNet",
        "[[controlnets]]",
    ),
    "t2i-adapter": (
        {"body.0.block1.weight": (8, 8, 3, 3), "body.0.block2.weight": (8, 8, 1, 1), "conv_in.weight": (8, 64, 3, 3)},
        "a T2I-Adapter",
        "[[t2i_adapters]]",
    ),
    "t2i-adapter-diffusers": (
        {"adapter.body.0.resnets.0.block1.weight": (8, 8, 3, 3)},
        "a T2I-Adapter",
        "[[t2i_adapters]]",
    ),
    "ip-adapter": (
        {"image_proj.proj.weight": (8, 8), "ip_adapter.1.to_k_ip.weight": (8, 8)},
        "an IP-Adapter",
        "[[ip_adapters]]",
    ),
    "ip-adapter-faceid": (
        {
            "image_proj.norm.weight": (8,),
            "ip_adapter.0.to_q_lora.down.weight": (4, 8),
            "ip_adapter.0.to_q_lora.up.weight": (8, 4),
        },
        "an IP-Adapter",
        "[[ip_adapters]]",
    ),
    "svdquant": (
        {"transformer_blocks.0.attn.to_qkv.qweight": (8, 8), "transformer_blocks.0.attn.to_qkv.wscales": (8, 1)},
        "an SVDQuant checkpoint",
        "bf16 or fp8",
    ),
    "esrgan": (
        {"model.0.weight": (8, 3, 3, 3), "model.1.sub.0.RDB1.conv1.0.weight": (8, 8, 3, 3)},
        "an upscaler",
        "enlarges",
    ),
    "real-esrgan": (
        {"conv_first.weight": (8, 3, 3, 3), "body.0.rdb1.conv1.weight": (8, 8, 3, 3)},
        "an upscaler",
        "enlarges",
    ),
    "swinir": (
        {"layers.0.residual_group.blocks.0.attn.qkv.weight": (24, 8), "conv_first.weight": (8, 3, 3, 3)},
        "an upscaler",
        "no other is loaded",
    ),
    "compact": ({"body.0.weight": (8, 3, 3, 3), "body.1.weight": (8,)}, "an upscaler", "enlarges"),
    "dat": (
        {"conv_first.weight": (8, 3, 3, 3), "before_RG.1.weight": (8,), "layers.0.blocks.0.attn.qkv.weight": (24, 8)},
        "an upscaler",
        "no other is loaded",
    ),
    "plksr": ({"feats.0.weight": (8, 3, 3, 3), "feats.1.lk.conv.weight": (4, 4, 17, 17)}, "an upscaler", "no other"),
    "edsr": ({"head.0.weight": (8, 3, 3, 3), "tail.0.0.weight": (32, 8, 3, 3)}, "an upscaler", "no other"),
    "lllite": (
        {"lllite_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q.conditioning1.0.weight": (16, 3, 4, 4)},
        "a ControlNet-LLLite",
        "take a ControlNet",
    ),
    "control-lora": (
        {"lora_controlnet": (1,), "input_blocks.1.0.in_layers.2.up": (8, 4), "input_hint_block.0.weight": (8, 3, 3, 3)},
        "a control-LoRA",
        "take the whole ControlNet",
    ),
    "ip-adapter-xlabs": (
        {
            "ip_adapter_proj_model.proj.weight": (8, 8),
            "double_blocks.0.processor.ip_adapter_double_stream_k_proj.weight": (8, 8),
        },
        "an IP-Adapter",
        "[[ip_adapters]]",
    ),
    "pulid": (
        {"pulid_ca.0.norm1.weight": (8,), "pulid_encoder.latents": (1, 5, 8)},
        "a PuLID adapter",
        "a face's embedding",
    ),
    "redux": (
        {"redux_up.weight": (8, 8), "redux_down.weight": (8, 8)},
        "a Redux image encoder",
        "prepares embeddings",
    ),
    "video": (
        {
            "model.diffusion_model.input_blocks.1.1.time_stack.0.attn1.to_q.weight": (8, 8),
            "model.diffusion_model.input_blocks.1.0.in_layers.0.weight": (8,),
        },
        "a video checkpoint",
        "draws videos",
    ),
    "open-clip-with-vision": (
        {
            "visual.transformer.resblocks.0.attn.in_proj_weight": (24, 8),
            "visual.conv1.weight": (8, 3, 4, 4),
            "token_embedding.weight": (99, 8),
        },
        "an image encoder",
        "image_encoder",
    ),
    "motion": (
        {"down_blocks.0.motion_modules.0.temporal_transformer.norm.weight": (8,)},
        "a motion module",
        "draws videos",
    ),
    "chat": (
        {"model.embed_tokens.weight": (99, 8), "model.layers.0.mlp.up_proj.weight": (8, 8), "model.norm.weight": (8,)},
        "a language model",
        "chat.toml",
    ),
}
DENOISERS: Mapping[str, Shapes] = {
    "unet": {"input_blocks.1.0.in_layers.0.weight": (8,), "out.0.weight": (8,)},
    "unet-of-comfy": {"model.diffusion_model.input_blocks.1.0.in_layers.0.weight": (8,), "v_pred": (0,)},
    "unet-diffusers": {"conv_in.weight": (8, 4, 3, 3), "down_blocks.0.resnets.0.conv1.weight": (8, 8, 3, 3)},
    "flux": {
        "double_blocks.0.img_attn.qkv.weight": (24, 8),
        "img_in.weight": (8, 8),
        "final_layer.linear.weight": (8, 8),
    },
    "sd3": {"joint_blocks.0.x_block.attn.qkv.weight": (24, 8), "x_embedder.proj.weight": (8, 16, 2, 2)},
    "z-image": {
        "layers.0.attention.qkv.weight": (24, 8),
        "noise_refiner.0.w1.weight": (8, 8),
        "x_embedder.weight": (8, 8),
    },
    "qwen": {"transformer_blocks.0.attn.to_q.weight": (8, 8), "img_in.weight": (8, 8), "txt_in.weight": (8, 8)},
    "aura-flow": {"model.double_layers.0.attn.w1q.weight": (8, 8), "model.init_x_linear.weight": (8, 8)},
    "wrapped": {"net.transformer_blocks.0.attn.to_q.weight": (8, 8), "net.img_in.weight": (8, 8)},
    "detector": {"model.0.conv.weight": (8, 3, 3, 3), "model.22.dfl.conv.weight": (1, 8, 1, 1)},
    "head": {"layers.0.weight": (8, 8), "layers.7.weight": (1, 8)},
    "unknown": {"blocks.0.attention.weight": (8, 8), "patch.weight": (8, 8)},
    "whole": {
        "model.diffusion_model.out.2.weight": (8, 8),
        "first_stage_model.encoder.conv_in.weight": (8, 3, 3, 3),
        "cond_stage_model.transformer.text_model.final_layer_norm.weight": (8,),
    },
}


def saved(file: Path, shapes: Shapes) -> Path:
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, file)
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_is_named_with_its_place(tmp_path: Path, kind: str) -> None:
    shapes, name, place = KINDS[kind]
    file = saved(tmp_path / "x.safetensors", shapes)
    problem = next(each for each in inspect_checkpoint(file).problems if each.startswith(f"{file}: {name}"))
    assert place in problem
    with pytest.raises(CheckpointError, match=name):
        _ = CheckpointFiles.at(file).checked_folder


@pytest.mark.parametrize("kind", DENOISERS)
def test_denoisers_and_whole_checkpoints_are_no_other_kind(tmp_path: Path, kind: str) -> None:
    assert WeightFile(saved(tmp_path / "x.safetensors", DENOISERS[kind])).kind is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["base", "config"])
def test_nothing_else_is_added_beside_a_folder(
    manager: CheckpointManager, folders: tuple[Path, Path], kind: str, key: str
) -> None:
    shapes, name, _ = KINDS[kind]
    flux_folder(folders[1] / "flux")
    saved(folders[1] / "x.safetensors", shapes)
    before = sorted(folders[0].iterdir())
    with pytest.raises(BadRequest, match=rf"It can't be served: .*(: {name}|svdquant is not supported)"):
        manager.add("x.safetensors", price="0.10", **{key: "flux"})
    assert sorted(folders[0].iterdir()) == before


def test_a_denoiser_of_another_size_is_not_added_to_a_base(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    flux_folder(folders[1] / "flux")
    denoiser_file(folders[1] / "other.safetensors", 30_000)
    with pytest.raises(BadRequest, match="its denoiser has 30,000 weights, and that of flux 1,000: they are"):
        manager.add("other.safetensors", base="flux")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"_class_name": "AutoencoderKL"}, "a VAE alone: name it beside a checkpoint of the same kind, with the key"),
        ({"_class_name": "AutoencoderTiny"}, "a VAE alone"),
        ({"_class_name": "FluxTransformer2DModel"}, "a denoiser alone"),
        ({"_class_name": "UNet2DConditionModel"}, "a denoiser alone"),
        ({"_class_name": "FluxControlNetModel"}, "a ControlNet: name it in [[controlnets]]"),
        ({"_class_name": "T2IAdapter"}, "a T2I-Adapter: name its diffusers folder in [[t2i_adapters]]"),
        ({"architectures": ["CLIPVisionModelWithProjection"]}, "an image encoder"),
        ({"architectures": ["CLIPTextModel"]}, "a text encoder alone"),
        ({"architectures": ["ViTForImageClassification"]}, "an image classifier"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "a chat model or classifier of transformers"),
    ],
)
def test_the_folder_of_one_part_is_named_with_its_place(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.json").write_text(json.dumps(config))
    assert message in inspect_checkpoint(tmp_path / "x").problems[0]


def test_gguf_files_of_other_kinds_are_named(tmp_path: Path) -> None:

    for name, names in {
        "a language model": ("token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"),
        "a text encoder alone": ("token_embd.weight", "enc.blk.0.attn_q.weight", "enc.output_norm.weight"),
    }.items():
        file = write_gguf({each: torch.zeros(2, 32) for each in names}, {}, Q8_0, tmp_path / "x.gguf")
        assert inspect_checkpoint(file).problems[0].startswith(f"{file}: {name}")
