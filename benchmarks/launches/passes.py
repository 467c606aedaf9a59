"""One forward pass of a published checkpoint's denoiser, on fake tensors of a simulated GPU: as the library calls it,
and as it is served by default, through the engine's own merger and graphs."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import diffusers
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.launches.tally import Tally, Work
from benchmarks.real_memory.networks import CHECKPOINTS, CLIP_L, T5, RealCheckpoint, kl_codec, tokens_of, weights
from benchmarks.real_memory.parts import made
from pipelines.device.graph_capture import CAPTURES
from pipelines.images.denoising import pass_graphs
from pipelines.images.denoising.merging import Sharing
from pipelines.images.loading.load import share_passes
from pipelines.images.scheduling.row_limits import RowLimits
from pipelines.images.scheduling.scheduler import DeviceScheduler, DeviceTurn
from pipelines.protocol.images import Runtime

GPU: Final = torch.device("cuda")
MOST_PASSES: Final = 20  # until one is a graph
SETTLED: Final = 0.1  # of the launches of an eager pass: those of one that is a graph
SIDES_PX: Final = (1024, 512)


@dataclass(frozen=True)
class Drawing:
    """How a published checkpoint draws an image: its pipeline, its steps, and the passes of each. A pass that computes
    both halves of guidance as rows is one."""

    name: str
    pipeline: str
    steps: int
    passes: int = 1

    @property
    def checkpoint(self) -> RealCheckpoint:
        """Return its networks."""
        return next(each for each in (*CHECKPOINTS, CHROMA) if each.name == self.name)


def _chroma_step(transformer: torch.nn.Module, rows: int, width: int, height: int, _: int) -> Any:
    count = tokens_of(width, height)
    return transformer(
        hidden_states=weights(rows, count, 64), timestep=weights(rows), encoder_hidden_states=weights(rows, 512, 4096),
        txt_ids=weights(512, 3), img_ids=weights(count, 3), attention_mask=weights(rows, 512 + count),
    )  # fmt: skip


CHROMA: Final = RealCheckpoint(
    "Chroma", diffusers.ChromaTransformer2DModel, _chroma_step, (CLIP_L, T5), kl_codec(16), 16
)
DRAWINGS: Final = (
    Drawing("FLUX.1", "FluxPipeline", 28),
    Drawing("FLUX.2 [dev]", "Flux2Pipeline", 28),
    Drawing("FLUX.2 klein 4B", "Flux2KleinPipeline", 4),
    Drawing("Z-Image", "ZImagePipeline", 8),
    Drawing("SDXL", "StableDiffusionXLPipeline", 30),
    Drawing("SD 3.5 large", "StableDiffusion3Pipeline", 28),
    Drawing("Qwen-Image", "QwenImagePipeline", 50, passes=2),
    Drawing("Chroma", "ChromaPipeline", 40, passes=2),
)


@dataclass(frozen=True)
class Counted:
    """What a pass of a size does, eager and as it is served once its form has come often."""

    side_px: int
    eager: Work
    served: Work


def counted(drawing: Drawing, sides_px: tuple[int, ...] = SIDES_PX, rows: int = 1) -> Iterator[Counted]:
    """Yield the counts of a checkpoint's pass by size, for so many images. The GPU is simulated, and so has to be
    installed."""
    checkpoint, tally = drawing.checkpoint, Tally()
    with FakeTensorMode(allow_non_fake_inputs=True), GPU, torch.inference_mode():
        denoiser = made(checkpoint.denoiser)
        eager = {side: _pass(tally, checkpoint, denoiser, rows, side) for side in sides_px}
        scheduler = DeviceScheduler()
        sharing = Sharing(scheduler, RowLimits(1))
        with (
            patch.dict(CAPTURES, {GPU.type: lambda: tally.capture}),
            patch.object(pass_graphs, "CAPTURED_AT", 1),
            scheduler.acquire(DeviceTurn(1.0)),
        ):
            with patch.dict(os.environ, {"TRITON_INTERPRET": "0"}):  # its kernels are counted, and none is computed
                share_passes(denoiser, sharing, Runtime(), GPU, getattr(diffusers, drawing.pipeline))
            for side in sides_px:
                passes = (_pass(tally, checkpoint, denoiser, rows, side) for _ in range(MOST_PASSES))
                next(each for each in passes if each.host_launches < SETTLED * eager[side].launches())
                yield Counted(side, eager[side], next(passes))  # the one before may have tried its graph


def _pass(tally: Tally, checkpoint: RealCheckpoint, denoiser: torch.nn.Module, rows: int, side_px: int) -> Work:
    with tally.counting() as work:
        checkpoint.step(denoiser, rows * checkpoint.rows, side_px, side_px, 0)
    return work
