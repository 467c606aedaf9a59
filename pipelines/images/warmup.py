"""The picture that a checkpoint draws in warmup."""

import math
import uuid
from dataclasses import replace
from typing import Final

import torch

from pipelines.protocol.images import CheckpointSpec, Encoding, ImageJob

MIN_SIDE: Final = 4  # in multiples of multiple_px


def warmup_job(spec: CheckpointSpec, multiple_px: int, device: torch.device) -> ImageJob:
    """A square in two steps; the first one includes what is built and allocated only once. A GPU's kernels are built
    for sizes, so there the square has the checkpoint's native area; on a CPU a quarter of the side is enough.
    """
    on_cpu = device.type == "cpu"
    native = max(1, round(math.sqrt(spec.native_area_px) / multiple_px))
    side_px = multiple_px * (min(native, max(MIN_SIDE, native // 4)) if on_cpu else native)
    return ImageJob(
        id=f"warm-{uuid.uuid4().hex}",
        checkpoint=replace(spec, native_area_px=side_px**2),  # else it would be drawn larger and downscaled
        prompt="a red house on green grass under a blue sky",
        sampling=spec.sampling.resolve(steps=2, strength=1.0),
        width_px=side_px,
        height_px=side_px,
        n=1,
        seed=0,
        references=(),
        mask=None,
        encoding=Encoding(),
        metadata={},
        time_limit_s=3600,
    )
