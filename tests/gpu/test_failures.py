"""A GPU that fails: a sticky error ends the process, and running out of memory does not."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pipelines.device.failures import is_responsive
from pipelines.images.engine import ImageEngine
from pipelines.protocol.images import CheckpointSpec
from pipelines.protocol.messages import LOST_DEVICE_EXIT
from tests.gpu.conftest import draw
from tests.support.image_jobs import image_job

GPU = torch.device("cuda")
STICKY = """
import torch
from pipelines.device.failures import watch_device

def work():
    torch._assert_async(torch.zeros((), device="cuda"))
    torch.cuda.synchronize()

watch_device(torch.device("cuda"), work)
"""


def test_a_sticky_error_ends_the_process_and_says_so() -> None:
    ended = subprocess.run([sys.executable, "-c", STICKY], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == LOST_DEVICE_EXIT, ended.stderr
    assert "The device no longer answers" in ended.stderr


async def test_a_batch_that_runs_out_of_memory_is_drawn_in_smaller_ones(flux: CheckpointSpec) -> None:
    """A pass of more than two rows asks for more than the device has."""
    engine = ImageEngine(GPU)
    (alone,) = await draw(engine, image_job(flux))
    denoiser = (await engine.load(flux)).denoiser
    rows = []

    def take_memory(_: Any, __: Any, inputs: dict[str, Any]) -> None:
        rows.append(len(inputs["hidden_states"]))
        if rows[-1] > 2:
            torch.empty(torch.cuda.mem_get_info()[1] + 1, dtype=torch.uint8, device=GPU)

    hook = denoiser.transformer_blocks[0].register_forward_pre_hook(take_memory, with_kwargs=True)
    images = await draw(engine, image_job(flux, id="batch", n=8, width_px=96, height_px=96))
    hook.remove()
    assert len(images) == 8
    assert max(rows) > 2
    assert rows[-1] <= 2
    assert np.array_equal((await draw(engine, image_job(flux, id="again")))[0], alone)
    assert is_responsive(GPU)


async def test_a_job_that_never_fits_fails_alone_and_the_device_recovers(flux: CheckpointSpec) -> None:
    """In one pass: what the allocator keeps would do for a small image."""
    engine = ImageEngine(GPU)
    job = image_job(flux)
    (before,) = await draw(engine, job)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(2e-4)
    try:
        spec = replace(flux, native_area_px=1024**2, max_area_px=1024**2)
        large = image_job(spec, id="large", width_px=1024, height_px=1024, time_limit_s=600)
        events = [event async for event in engine.submit(large)]
        assert getattr(events[-1], "code", None) == "out_of_memory", events[-1]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert np.array_equal((await draw(engine, job))[0], before)
