"""Checkpoint folders and files that are only looked at: configs, and weights of zeros."""

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.inspection import findings as inspection
from pipelines.checkpoints.inspection.findings import Inspection

INDEX = {
    "_class_name": "FluxPipeline",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "FluxTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "scheduler/scheduler_config.json": {"_class_name": "FlowMatchEulerDiscreteScheduler"},
    "text_encoder/config.json": {},
    "text_encoder_2/config.json": {},
    "tokenizer/tokenizer_config.json": {},
    "tokenizer_2/tokenizer_config.json": {},
    "transformer/config.json": {"guidance_embeds": True},
    "vae/config.json": {"block_out_channels": [8, 8, 8, 8]},
}
WEIGHTS = {
    "text_encoder/model.safetensors": 30,
    "text_encoder_2/model.safetensors": 70,
    "transformer/diffusion_pytorch_model.safetensors": 1000,
    "vae/diffusion_pytorch_model.safetensors": 10,
}


def flux_folder(folder: Path, *, index: Mapping[str, Any] = INDEX, **configs: Mapping[str, Any]) -> Path:
    """A folder like FLUX.1's, of 1110 weights; a config by its component's name replaces its own."""
    (folder).mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps(index))
    for name, config in CONFIGS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(configs.get(name.partition("/")[0], config)))
    for name, weights in WEIGHTS.items():
        save_file({"weight": np.zeros(weights, np.float16)}, folder / name)
    return folder


def sd_folder(folder: Path, scheduler: str = "EulerDiscreteScheduler", **config: Any) -> Path:
    """A folder like Stable Diffusion's, of 1110 weights, with this scheduler."""
    index = {
        "_class_name": "StableDiffusionPipeline",
        "scheduler": ["diffusers", scheduler],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    flux_folder(folder, index=index, scheduler={"_class_name": scheduler, **config}, transformer={"sample_size": 64})
    (folder / "transformer").rename(folder / "unet")
    for name in ("text_encoder_2", "tokenizer_2"):
        shutil.rmtree(folder / name)
    save_file({"weight": np.zeros(100, np.float16)}, folder / "text_encoder" / "model.safetensors")
    return folder


def denoiser_file(file: Path, weights: int = 1000) -> Path:
    save_file({"double_blocks.0.weight": np.zeros((weights // 10, 10), np.float16)}, file)
    return file


def gguf_file(file: Path, weights: int = 1024) -> Path:
    """One tensor in Q8_0: blocks of 32 weights in 34 bytes."""
    name, text = b"double_blocks.0.weight", b"flux"
    key = b"general.architecture"
    header = struct.pack("<4sIQQ", b"GGUF", 3, 1, 2)
    pairs = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(text)) + text
    pairs += struct.pack("<Q", 4) + b"list" + struct.pack("<IIQ3I", 9, 4, 3, 1, 2, 3)
    tensor = struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, 32, weights // 32, 8, 0)
    head = header + pairs + tensor
    file.write_bytes(head + bytes(-len(head) % 32) + bytes(weights // 32 * 34))
    return file


def inspect_checkpoint(path: Path, base: Path | None = None, config: Path | None = None) -> Inspection:
    """What is found in a checkpoint, with the folder beside a single file."""
    return inspection.inspect_checkpoint(CheckpointFiles.at(path, base, config))
