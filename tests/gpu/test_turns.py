"""What must not change a bit on a GPU: turns, moves of weights, and loading beside drawing."""

import asyncio
import os
from dataclasses import replace

import numpy as np
import torch

from pipelines.device.memory import Budgets
from pipelines.device.staged_copy import StagedCopy, move_modules
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.checkpoint_cache import HOST
from pipelines.protocol.images import CheckpointSpec, Event, Progress
from tests.gpu.conftest import draw
from tests.support.image_jobs import image_job

GPU = torch.device("cuda")


async def test_images_that_take_turns_are_bit_for_bit_those_drawn_alone(flux: CheckpointSpec) -> None:
    engine = ImageEngine(GPU)
    long = image_job(flux, id="long", steps=40, prompt="a cat")
    short = image_job(flux, id="short", steps=4, width_px=96, seed=11)
    alone = [(await draw(engine, job))[0] for job in (long, short)]
    again = [(await draw(engine, job))[0] for job in (long, short)]
    assert np.array_equal(alone[0], again[0])
    assert np.array_equal(alone[1], again[1])
    under_way = asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Progress) and event.step == 3:
            under_way.set()

    running = asyncio.create_task(draw(engine, long, on_event))
    running.add_done_callback(lambda _: under_way.set())  # also if it fails
    await under_way.wait()
    assert np.array_equal((await draw(engine, short))[0], alone[1])
    assert np.array_equal((await running)[0], alone[0])


async def test_weights_that_went_to_the_host_and_back_draw_the_same_bits(flux: CheckpointSpec) -> None:
    engine = ImageEngine(GPU)
    job = image_job(flux, steps=4)
    (before,) = await draw(engine, job)
    checkpoint = await engine.load(flux)
    checkpoint.move(HOST)
    weights = list(checkpoint.denoiser.parameters())
    assert {weight.device.type for weight in weights} == {"cpu"}
    checkpoint.move(GPU)
    assert {weight.device.type for weight in weights} == {"cuda"}
    assert np.array_equal((await draw(engine, job))[0], before)


async def test_a_swap_in_beside_an_image_changes_no_bit_of_either(flux: CheckpointSpec) -> None:
    engine = ImageEngine(GPU)
    job = image_job(flux, steps=60)
    (alone,) = await draw(engine, job)
    other = replace(flux, name="other", version=1)
    (image,), _ = await asyncio.gather(draw(engine, job), engine.load(other))
    assert np.array_equal(image, alone)
    assert np.array_equal((await draw(engine, image_job(other, steps=60)))[0], alone)


async def test_an_evicted_checkpoint_comes_back_from_the_host(flux: CheckpointSpec) -> None:
    size = (await ImageEngine(GPU).load(flux)).weights_bytes
    engine = ImageEngine(GPU, Budgets(size + 1000, 2 * size, 2**30))
    other = replace(flux, name="other", version=1)
    (first,) = await draw(engine, image_job(flux))
    await draw(engine, image_job(other, id="other"))
    assert np.array_equal((await draw(engine, image_job(flux)))[0], first)


def test_tensors_larger_than_the_buffers_arrive_whole_while_kernels_run() -> None:
    source = torch.randn(300, 1001).to(torch.bfloat16)
    side = 64 if "SIMULATED_GPUS" in os.environ else 4096  # copies are late there without kernels
    busy = torch.randn(side, side, device=GPU)
    for _ in range(20):
        busy = busy @ busy / 64
    copier = StagedCopy(GPU, GPU, buffer_bytes=4096)
    copied = copier.copy(source)
    copier.finish()
    assert torch.equal(copied.cpu(), source)
    returning = StagedCopy(HOST, GPU, buffer_bytes=4096)
    back = returning.copy(copied)
    returning.finish()
    assert torch.equal(back, source)


def test_modules_move_by_whole_and_keep_ties() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(33, 33), torch.nn.Linear(33, 33))
    module[1].weight = module[0].weight
    before = module[0].weight.detach().clone()
    move_modules([module], GPU)
    assert module[0].weight is module[1].weight
    assert torch.equal(module[0].weight.cpu(), before)
