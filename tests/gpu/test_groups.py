"""An image on two GPUs: what it is, and that memory is free again after it."""

import asyncio
import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.images.engine import ImageEngine
from pipelines.images.parallel.group import Group
from pipelines.protocol.images import CheckpointSpec, Runtime
from tests.gpu.conftest import draw
from tests.support.image_jobs import image_job

GPU = torch.device("cuda")
MAY_DIFFER = 4  # levels on average, in bfloat16: sums are rounded in another order
pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs here"),
    pytest.mark.usefixtures("few_interpreted_rows"),
]


@pytest.fixture
def pair() -> Iterator[Group]:
    made = Group(GPU, 2)
    yield made
    made.close()


@pytest.mark.parametrize("options", [{}, {"quantize": "fp8"}, {"attention": "_native_cudnn"}], ids=str)
@pytest.mark.parametrize("parallel", ["context", "tensor", "encoders"])
async def test_two_gpus_draw_what_one_does(
    parallel: Any, options: dict[str, Any], flux: CheckpointSpec, pair: Group
) -> None:
    if parallel == "tensor" and "quantize" in options:
        pytest.skip("refused")
    if parallel != "encoders" and "SIMULATED_GPUS" in os.environ:
        pytest.skip("NCCL is not simulated")
    jobs = [
        image_job(flux, id="plain", steps=4),
        image_job(flux, id="wide", steps=4, width_px=96, n=2),
        image_job(flux, id="odd", steps=4, width_px=112, height_px=80),
    ]
    one, two = ImageEngine(GPU), ImageEngine(GPU, group=pair)
    for job in jobs:
        alone = replace(job, checkpoint=replace(flux, runtime=Runtime(**options)))
        both = replace(job, checkpoint=replace(flux, runtime=Runtime(gpus=2, parallel=parallel, **options)))
        for image, expected in zip(await draw(two, both), await draw(one, alone), strict=True):
            assert np.abs(image.astype(int) - expected).mean() < MAY_DIFFER


async def test_text_encoders_are_on_the_second_gpu_and_come_back_to_it(flux: CheckpointSpec, pair: Group) -> None:
    engine = ImageEngine(GPU, group=pair)
    spec = replace(flux, runtime=Runtime(gpus=2, parallel="encoders"))
    job = image_job(spec, width_px=32, height_px=32, steps=1)
    images = []
    for _ in range(2):
        images += await draw(engine, job)
        places = {
            name: {weight.device.index for weight in part.parameters()}
            for name, part in (await engine.load(spec)).components.items()
            if isinstance(part, torch.nn.Module)
        }
        assert places == {"text_encoder": {1}, "text_encoder_2": {1}, "transformer": {0}, "vae": {0}}
        await engine.sleep()
    assert np.array_equal(*images)


@pytest.mark.skipif("SIMULATED_GPUS" in os.environ, reason="NCCL is not simulated")
async def test_an_evicted_checkpoint_leaves_both_gpus(flux: CheckpointSpec, pair: Group) -> None:
    engine = ImageEngine(GPU, group=pair)
    spec = replace(flux, runtime=Runtime(gpus=2))
    free = []
    for version in range(4):
        await draw(engine, image_job(replace(spec, version=version), steps=2))
        engine.unload_except([])
        gc.collect()
        await asyncio.sleep(1)
        free.append(min(torch.cuda.mem_get_info(each)[0] for each in range(2)))
    assert free[-1] >= free[0] - 64 * 2**20
