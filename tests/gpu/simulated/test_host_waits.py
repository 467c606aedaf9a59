"""What makes the host wait, and where bytes lie while they are copied: nothing of it changes a picture."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from pipelines.device import staged_copy
from pipelines.device.memory import Budgets
from pipelines.device.staged_copy import StagedCopy, Transfer
from pipelines.device.timing import CudaTimeline
from pipelines.images.engine import ImageEngine
from pipelines.protocol.images import CheckpointSpec
from tests.gpu.conftest import draw
from tests.simulated_gpu import device
from tests.support.image_jobs import image_job

GPU, HOST = torch.device("cuda"), torch.device("cpu")
BUFFER = 4096


def waited_for() -> list[str]:
    return [seen.text for seen in device.log.take() if seen.kind == "sync"]


@pytest.mark.parametrize("target", [GPU, HOST], ids=["to the device", "to the host"])
def test_weights_pass_through_two_page_locked_buffers(target: torch.device, gpu: Any) -> None:
    """A copy of pageable memory waits for all kernels that were launched before it."""
    layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).to(GPU if target == HOST else HOST)
    before = gpu.page_locked_bytes()
    copier = StagedCopy(target, GPU, BUFFER)
    assert gpu.page_locked_bytes() == before + 2 * BUFFER
    device.log.take()
    with patch.object(staged_copy, "BUFFER_BYTES", BUFFER):
        copier.move(layers)
    waits = waited_for()
    assert waits
    assert set(waits) <= {"event", "stream"}, "for single pieces, and at last for the copying stream"
    assert waits.count("stream") == 1
    del copier
    assert gpu.page_locked_bytes() == before


def test_a_transfer_has_arrived_when_it_was_waited_for(gpu: Any) -> None:
    before, device_side = gpu.page_locked_bytes(), torch.arange(1000.0, device=GPU)
    device.log.take()
    transfer = Transfer(device_side)
    assert not waited_for(), "it is queued"
    assert gpu.page_locked_bytes() == before + device_side.nbytes
    assert torch.equal(transfer.wait(), torch.arange(1000.0))
    assert waited_for() == ["event"]


def test_at_most_one_turn_is_queued_on_the_device() -> None:
    timeline, values = CudaTimeline(), torch.zeros(4, device=GPU)
    host = torch.zeros(4, pin_memory=True)
    device.log.take()
    for turn in range(3):
        values.add_(1)
        host.copy_(values, non_blocking=True)
        timeline.catch_up()
        assert waited_for() == ["event"] * min(turn, 1)
        assert host[0].item() == turn, "the turn before this one has ended"


@pytest.mark.parametrize("used", [True, False], ids=["in use", "idle"])
async def test_freed_memory_is_that_of_kept_prompts_too(flux: CheckpointSpec, *, used: bool) -> None:
    """Of a checkpoint that a run uses as well, whose weights stay."""
    engine = ImageEngine(GPU, Budgets(2**34, 2**34, 2**30))
    await draw(engine, image_job(flux, width_px=32, height_px=32, steps=1))
    loaded = engine._cache.find(flux)
    assert loaded is not None
    assert loaded.checkpoint.prompts.bytes > 0
    if used:
        engine._cache.acquire(loaded)
    await engine._cache.free_memory()
    assert loaded.on_device == used
    assert loaded.checkpoint.prompts.bytes == 0
    engine.close()
