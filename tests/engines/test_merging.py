"""Runs that share forward passes: which do, what it changes, and what happens to the others when one ends."""

import asyncio
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from pipelines.images.denoising.merging import ForwardMerger
from pipelines.images.denoising.step_observer import PreviewFn
from pipelines.images.drawing.run import Run
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.base_state import weights_digest
from pipelines.images.scheduling.scheduler import ForwardRequest
from pipelines.protocol.images import Failed, Finished, ImageJob, Progress, Runtime
from pipelines.protocol.pixels import pixels_digest
from tests.engines.conftest import left_half, plain_image
from tests.engines.device import DEVICE
from tests.engines.holds import hold_steps
from tests.engines.shared_passes import Passes, difference, drawn, drawn_together, last_event

Job = Callable[..., ImageJob]
CALLERS = [(12, "a cat"), (5, "a blue house"), (9, "x"), (12, "a red boat at sea")]  # steps and prompt
STARTS: dict[str, dict[str, object]] = {
    "text": {},
    "reference": {"references": (plain_image(),), "strength": 0.9},
    "mask": {"references": (plain_image(),), "mask": left_half(), "strength": 0.9},
    "two passes": {"width_px": 160, "height_px": 96},
}


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch)


@pytest.fixture
async def engine() -> ImageEngine:
    return ImageEngine(DEVICE)


@pytest.mark.daily("sd-text", "sd3-reference", "klein-mask")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", ["sd", "sd3", "klein"])
async def test_callers_of_other_steps_and_prompts_share_every_pass(
    engine: ImageEngine, job: Job, passes: Passes, name: str, start: str
) -> None:
    jobs = [
        job(name, id=str(steps), steps=steps, prompt=prompt, seed=steps, **STARTS[start])
        for steps, prompt in ([(3, "x"), (4, "a blue house")] if start == "two passes" else CALLERS[1:3])
    ]
    alone = [await drawn(engine, one) for one in jobs]
    counted, passes.alone = passes.alone, 0
    events = await drawn_together(engine, jobs)
    assert all(difference(event, images) <= 2 for event, images in zip(events, alone, strict=True))
    assert all(isinstance(event, Finished) and event.merged for event in events)
    assert sum(passes.shared) + passes.alone - 2 == counted, "a pass was computed twice, or not at all"
    assert len(passes.shared) >= min(steps for steps, _ in CALLERS) - 1 or start != "text"


async def test_an_exact_image_shares_no_pass_and_is_the_same_beside_others(
    engine: ImageEngine, job: Job, passes: Passes
) -> None:
    jobs = [job("sd", id=str(seed), seed=seed, steps=3) for seed in (3, 4, 5)]
    exact = replace(jobs[1], sampling=replace(jobs[1].sampling, batch="exact"))
    alone = await drawn(engine, jobs[1])
    events = await drawn_together(engine, [jobs[0], exact, jobs[2]])
    assert [isinstance(event, Finished) and event.merged for event in events] == [True, False, True]
    assert set(passes.shared) == {2}
    assert difference(events[1], alone) == 0
    files = [Image.open(io.BytesIO(event.images[0].data)) for event in events if isinstance(event, Finished)]
    assert [file.text["batch"] for file in files] == ["merged", "exact", "merged"]  # type: ignore[attr-defined]


async def test_a_file_says_what_drew_it_and_what_it_was_made_from(engine: ImageEngine, job: Job) -> None:
    mask = left_half()
    event = await last_event(engine, job("sd", references=(plain_image(),), mask=mask, strength=0.9))
    assert isinstance(event, Finished)
    text = Image.open(io.BytesIO(event.images[0].data)).text  # type: ignore[attr-defined]
    drawn_by = json.loads(text["drawn_by"])
    assert drawn_by == event.found["drawn_by"]
    assert drawn_by["torch"] == torch.__version__
    assert ("CPU" in drawn_by["device"]) == (DEVICE.type == "cpu")
    assert json.loads(text["made_from"]) == [pixels_digest(plain_image())]
    assert text["mask"] == pixels_digest(mask)
    checkpoint = await engine.load(job("sd").checkpoint)
    assert weights_digest(checkpoint.components) == drawn_by["weights"]
    next(checkpoint.denoiser.parameters()).data[0] += 1
    assert weights_digest(checkpoint.components) != drawn_by["weights"]


async def test_four_callers_take_as_many_passes_as_the_longest(engine: ImageEngine, job: Job, passes: Passes) -> None:
    jobs = [job("klein", id=prompt, steps=steps, prompt=prompt) for steps, prompt in CALLERS]
    await drawn_together(engine, jobs)
    assert sum(passes.shared) == sum(steps for steps, _ in CALLERS)
    assert len(passes.shared) == max(steps for steps, _ in CALLERS)


async def test_a_newcomer_joins_at_the_next_step(
    engine: ImageEngine, job: Job, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has more to do than the one that runs, and does not wait for its end."""
    order: list[str] = []
    under_way = asyncio.Event()
    hold_steps(monkeypatch, lambda name, step: (name, step) != ("first", 1) or engine._scheduler._waiting)

    async def follow(one: ImageJob) -> None:
        async for event in engine.submit(one):
            if isinstance(event, Progress):
                order.append(one.id)
                under_way.set()

    await engine.load(job("sd").checkpoint)
    first = asyncio.create_task(follow(job("sd", id="first", steps=60)))
    await under_way.wait()
    await follow(job("sd", id="newcomer", steps=90))
    await first
    assert len(passes.shared) > 30
    assert order.index("newcomer") < 30


async def test_exact_images_are_drawn_alone_bit_for_bit(engine: ImageEngine, job: Job, passes: Passes) -> None:
    exact = replace(job("sd").checkpoint, runtime=Runtime(batch="exact"))
    jobs = [job("sd", id=prompt, checkpoint=exact, steps=3, prompt=prompt) for _, prompt in CALLERS]
    alone = [await drawn(engine, one) for one in jobs]
    events = await asyncio.gather(*(last_event(engine, one) for one in jobs))
    assert [difference(event, images) for event, images in zip(events, alone, strict=True)] == [0] * 4
    assert passes.shared == []
    assert not any(isinstance(event, Finished) and event.merged for event in events)


@pytest.mark.nightly
async def test_a_cancelled_member_leaves_and_the_others_go_on(
    engine: ImageEngine, job: Job, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job("sd", id=name, steps=20, prompt=name) for name in "abc"]
    alone = [await drawn(engine, one) for one in jobs]
    after_step = Run._after_step
    loop = asyncio.get_running_loop()

    def cancel_b(run: Run, preview: PreviewFn) -> None:
        if run.row.job.id == "b" and run.step == 3:
            asyncio.run_coroutine_threadsafe(_cancel(engine, "b"), loop).result(60)
        after_step(run, preview)

    monkeypatch.setattr(Run, "_after_step", cancel_b)
    first, cancelled, third = await drawn_together(engine, jobs)
    assert isinstance(cancelled, Failed)
    assert cancelled.code == "cancelled"
    assert difference(first, alone[0]) <= 2
    assert difference(third, alone[2]) <= 2
    assert {2, 3} <= set(passes.shared)


async def _cancel(engine: ImageEngine, job_id: str) -> None:
    engine.cancel(job_id)


@pytest.mark.nightly
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("boom")])
async def test_members_of_a_pass_that_fails_are_drawn_alone(
    engine: ImageEngine, job: Job, passes: Passes, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    jobs = [job("sd", id=prompt, steps=3, prompt=prompt) for _, prompt in CALLERS]
    alone = [await drawn(engine, one) for one in jobs]

    def fail(merger: ForwardMerger, requests: list[ForwardRequest]) -> list[Any]:
        passes.shared.append(len(requests))
        raise error

    monkeypatch.setattr(ForwardMerger, "_in_one_pass", fail)
    events = await drawn_together(engine, jobs)
    assert [difference(event, images) for event, images in zip(events, alone, strict=True)] == [0] * 4
    # out of memory halves what may share a pass; any other error ends sharing
    assert passes.shared == [4, 2] if isinstance(error, torch.OutOfMemoryError) else [4]


async def test_rows_that_are_not_independent_are_never_shared(engine: ImageEngine, job: Job, passes: Passes) -> None:
    """As of a denoiser that mixes the images of a batch: the first shared pass shows it."""
    checkpoint = await engine.load(job("sd").checkpoint)
    checkpoint.denoiser.conv_in.register_forward_hook(lambda _, __, output: output.flip(0))
    jobs = [job("sd", id=prompt, steps=4, prompt=prompt, seed=steps) for steps, prompt in CALLERS]
    alone = [await drawn(engine, one) for one in jobs]
    events = await drawn_together(engine, jobs)
    assert [difference(event, images) for event, images in zip(events, alone, strict=True)] == [0] * 4
    assert passes.shared == [4]


async def test_only_images_with_the_same_adapters_share(
    engine: ImageEngine, job: Job, passes: Passes, adapter: Path
) -> None:
    spec = replace(job("sd").checkpoint, runtime=Runtime(lora_folder=adapter.parent))
    jobs = [
        job("sd", id=f"{loras}{seed}", checkpoint=spec, steps=5, seed=seed, loras=loras)
        for loras in ((), (("sketch", 4.0),))
        for seed in (1, 2)
    ]
    alone = [await drawn(engine, one) for one in jobs]
    events = await asyncio.gather(*(last_event(engine, one) for one in jobs))
    assert all(difference(event, images) <= 2 for event, images in zip(events, alone, strict=True))
    assert difference(events[0], alone[2]) > 2, "the adapter changes nothing"
    assert all(rows == 2 for rows in passes.shared)
