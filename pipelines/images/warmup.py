"""The picture that a checkpoint draws before anybody asks it to."""

import math
import uuid
from dataclasses import replace
from typing import Final

import torch

from pipelines.protocol.images import CheckpointSpec, Encoding, ImageJob

LEAST_SIDE: Final = 4  # of a pipeline's smallest sides


def warming_job(spec: CheckpointSpec, multiple_px: int, device: torch.device) -> ImageJob:
    """A square in two steps, of which the first one builds and allocates what is built and allocated once. A GPU's
    kernels are built for sizes, so there it is of the checkpoint's native area; on a CPU a quarter of the side will do.
    """
    on_cpu = device.type == "cpu"
    native = max(1, round(math.sqrt(spec.native_area_px) / multiple_px))
    side_px = multiple_px * (min(native, max(LEAST_SIDE, native // 4)) if on_cpu else native)
    return ImageJob(
        id=f"warm-{uuid.uuid4().hex}",
        checkpoint=replace(spec, native_area_px=side_px**2),  # or it would draw a larger one, and shrink it
        prompt="a red house on green grass under a blue sky",
        negative_prompt=spec.sampling.negative_prompt,
        width_px=side_px,
        height_px=side_px,
        n=1,
        steps=2,
        guidance=spec.sampling.guidance,
        strength=1.0,
        seed=0,
        references=(),
        mask=None,
        encoding=Encoding(),
        metadata={},
        time_limit_s=3600,
    )
