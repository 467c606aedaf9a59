"""What an image was drawn by: it is written into the file, so that a drawing that differs can be explained."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from pipelines.device.choice import describe
from pipelines.images.loading.base_state import weights_digest

PACKAGES = ("darkroom", "diffusers", "torch")
SEEDS = "64 bits"  # how much of a seed counts: the lowest 32 bits in images that do not say it


def identity_of(components: Mapping[str, Any], device: torch.device, count: int, dtype: torch.dtype) -> dict[str, str]:
    """Return the versions, the device with how many of it a checkpoint uses, the number format, how much of a seed
    counts, and a digest of the weights in memory."""
    return {
        **{name: version(name) for name in PACKAGES},
        "device": describe(device, count),
        "dtype": str(dtype).removeprefix("torch."),
        "seeds": SEEDS,
        "weights": weights_digest(components),
    }
