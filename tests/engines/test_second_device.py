"""Text encoders on a second device. Torch's lazy device is one that every build has: mixing it with the CPU fails."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._lazy import ts_backend

from pipelines.images.batching import Row
from pipelines.images.loading import load_checkpoint
from pipelines.images.parallel.encoders import call_from, text_encoders
from pipelines.images.pipeline import PicturePipeline
from pipelines.images.previews import PreviewMap
from pipelines.protocol.images import CheckpointSpec, ImageJob

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def second() -> torch.device:
    ts_backend.init()
    return torch.device("lazy")


@pytest.mark.parametrize("name", ["sd", "sd3", "klein"])
def test_prompts_are_read_there_and_pictures_drawn_here(
    name: str, second: torch.device, spec: Callable[[str], CheckpointSpec], job: Callable[..., ImageJob]
) -> None:
    checkpoint = load_checkpoint(spec(name), CPU)
    row = Row(job(name), 0, 0.0)
    expected = PicturePipeline(checkpoint, row, lambda _: None, PreviewMap()).generate()
    checkpoint.prompts.clear()
    encoders = text_encoders(checkpoint.components)
    for encoder in encoders:
        encoder.to(second)
        call_from(CPU, encoder, second)
    moved = replace(checkpoint, encoders_device=second)
    drawn = PicturePipeline(moved, row, lambda _: None, PreviewMap()).generate()
    assert np.abs(drawn.astype(int) - expected).max() <= 1
    assert encoders
    assert {weight.device.type for encoder in encoders for weight in encoder.parameters()} == {"lazy"}
