"""Text encoders on a second device."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.families.task import Task
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.parallel.encoders import add_device_hooks, text_encoders
from pipelines.protocol.images import CheckpointSpec

CPU = torch.device("cpu")


def draw(checkpoint: Checkpoint) -> Any:
    """Without inference mode, in which the lazy device has no views."""
    pipeline = checkpoint.pipeline(Task.TEXT)
    generator = torch.Generator().manual_seed(1)
    options = {"height": 64, "width": 64, "num_inference_steps": 2, "generator": generator, "output_type": "np"}
    return pipeline("a red boat", **options).images[0]


@pytest.mark.parametrize("name", ["sd", "sd3"])
def test_prompts_are_read_there_and_images_drawn_here(
    name: str, second: torch.device, spec: Callable[[str], CheckpointSpec]
) -> None:
    checkpoint = load_checkpoint(spec(name), CPU)
    expected = draw(checkpoint)
    checkpoint.prompts.clear()
    encoders = text_encoders(checkpoint.components)
    for encoder in encoders:
        encoder.to(second)
        add_device_hooks(CPU, encoder, second)
    drawn = draw(replace(checkpoint, encoders_device=second))
    assert np.abs(drawn - expected).max() <= 1 / 255
    assert {weight.device.type for encoder in encoders for weight in encoder.parameters()} == {"lazy"}
