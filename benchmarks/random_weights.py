"""Checkpoints of random weights for what the starters can't show on a CPU: their steps are too short, and most of the
time of their images is the autoencoder's."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from transformers import CLIPTextModel

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.networks import flux_pipeline
from pipelines.protocol.images import CheckpointSpec, SamplingDefaults
from server.catalog.images import ImageModel
from starters.architectures import clip_config, stable_diffusion, tiny_codec, unet
from starters.tokens import clip_tokenizer


@contextmanager
def random_model(model: ImageModel, pipeline: Any, side_px: int) -> Iterator[ImageModel]:
    """`model` with a checkpoint of this pipeline, which draws squares of every side up to `side_px` as they are."""
    with tempfile.TemporaryDirectory() as name:
        pipeline.save_pretrained(name)
        spec = CheckpointSpec(
            name="random", path=Path(name), config=None, family="alpha", conditioning="img2img", max_references=1,
            native_area_px=16, max_area_px=side_px**2, sampling=SamplingDefaults(guidance=1.0),
        )  # fmt: skip
        yield replace(model, checkpoint=spec)


def even_pipeline() -> Any:
    """A U-Net whose steps take time in proportion to the pixels, with a codec that takes about as long as a step."""
    return _of_unet((32, 64, 64, 64), sample_size=128)


def gaining_pipeline() -> Any:
    """A wide U-Net for few pixels: most of a step is reading its weights, so eight images at once take 0.42 of the time
    of eight steps."""
    return _of_unet((320, 640), sample_size=8)


def _of_unet(channels: tuple[int, ...], sample_size: int) -> Any:
    torch.manual_seed(0)
    tokenizer = clip_tokenizer()
    network = unet(channels=channels, text_width=32, sample_size=sample_size)
    codec = tiny_codec(channels=4, blocks=(1, 1, 1, 1), decoder_blocks=(1, 1, 0, 0))
    return stable_diffusion(codec, network, tokenizer, CLIPTextModel(clip_config(len(tokenizer), 32)))


def wide_pipeline() -> Any:
    """FLUX.1 at a fiftieth of its weights, with long steps at few tokens: a CPU gains from batches of these."""
    machine = Machine(torch.device("cpu"), tiny=True)
    pipeline = flux_pipeline(machine)
    pipeline.transformer = machine.make(
        lambda: FluxTransformer2DModel(
            in_channels=64,
            num_layers=2,
            num_single_layers=10,
            attention_head_dim=64,
            num_attention_heads=16,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            axes_dims_rope=(8, 28, 28),
        )
    )
    return pipeline
