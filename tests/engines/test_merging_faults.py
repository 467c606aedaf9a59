"""Members of shared forward passes that are cancelled, fail or run out of memory, beside healthy ones: every kind of
call, each on a pipeline class of its own."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.images.denoising.merging import ForwardMerger
from pipelines.images.denoising.step_observer import Pixels, PreviewFn
from pipelines.images.drawing.run import Run
from pipelines.images.engine import ImageEngine
from pipelines.images.scheduling.row_limits import RowLimits
from pipelines.images.scheduling.scheduler import ForwardRequest
from pipelines.protocol.images import CheckpointSpec, Conditioning, Event, Failed, Finished, ImageJob, Runtime
from tests.engines.conftest import left_half, plain_image
from tests.engines.device import DEVICE
from tests.engines.shared_passes import Passes, difference, drawn, drawn_together
from tests.engines.test_families import family_spec
from tests.support.image_jobs import image_job
from tests.support.tiny_families import make_family

ROUNDING = 2  # of 255: by how much a shared pass may change an image


@dataclass(frozen=True)
class Kind:
    """A kind of call, and the family that draws it here."""

    family: str
    conditioning: Conditioning = "img2img"
    fields: dict[str, Any] = field(default_factory=dict)
    steps: int = 5  # of the schedule: a redrawn image runs a part of them


KINDS = {
    "text": Kind("sd15"),
    "reference": Kind("sd3", fields={"references": (plain_image(),), "strength": 0.9}),
    "native reference": Kind("klein", "native", {"references": (plain_image(),)}),
    "mask": Kind(
        "sdxl-inpaint", fields={"references": (plain_image(),), "mask": left_half(), "strength": 0.9}, steps=6
    ),
    "guidance in two forwards": Kind("klein-base", "native", {"guidance": 2.0}),
    "tiles": Kind("flux-schnell", fields={"width_px": 160, "height_px": 96}, steps=4),
    "adapters": Kind("sd", fields={"loras": (("sketch", 4.0),)}),
}


@pytest.fixture(params=KINDS)
def jobs(
    request: pytest.FixtureRequest, tmp_path: Path, spec: Callable[[str], CheckpointSpec], adapter: Path
) -> list[ImageJob]:
    """Three calls of one kind, of other prompts, seeds and numbers of steps."""
    kind = KINDS[request.param]
    if kind.family == "sd":
        checkpoint = replace(spec("sd"), runtime=Runtime(lora_folder=adapter.parent))
    else:
        make_family(kind.family, tmp_path / kind.family)
        checkpoint = family_spec(kind.family, tmp_path, kind.conditioning)
    return [
        image_job(checkpoint, id=name, prompt=name, seed=seed, steps=kind.steps + seed, **kind.fields)
        for seed, name in enumerate(("first", "second", "third"))
    ]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch)


async def drawn_beside(
    engine: ImageEngine, jobs: list[ImageJob], monkeypatch: pytest.MonkeyPatch, fault: Callable[[Run], None]
) -> tuple[list[Event], list[list[Pixels]]]:
    """All three together, where `fault` is called after the second step of the second one; and each as it is alone."""
    alone = [await drawn(engine, job) for job in jobs]
    after_step = Run._after_step

    def break_second(run: Run, preview: PreviewFn) -> None:
        if run.row.job.id == "second" and run.step == 1 and not run.row.exclusive:
            fault(run)
        after_step(run, preview)

    monkeypatch.setattr(Run, "_after_step", break_second)
    return await drawn_together(engine, jobs), alone


def check_healthy(events: list[Event], alone: list[list[Pixels]], passes: Passes) -> None:
    for number in (0, 2):
        event = events[number]
        assert isinstance(event, Finished), event
        assert event.merged
        assert difference(event, alone[number]) <= ROUNDING
    assert 3 in passes.shared, "they never shared a pass"


@pytest.mark.daily("adapters")
async def test_a_cancelled_member_leaves_the_others_untouched(
    jobs: list[ImageJob], passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, loop = ImageEngine(DEVICE), asyncio.get_running_loop()

    async def cancel() -> None:
        engine.cancel("second")

    events, alone = await drawn_beside(
        engine, jobs, monkeypatch, lambda _: asyncio.run_coroutine_threadsafe(cancel(), loop).result(60)
    )
    assert isinstance(events[1], Failed)
    assert events[1].code == "cancelled"
    check_healthy(events, alone, passes)


@pytest.mark.daily("tiles")
async def test_a_failing_member_leaves_the_others_untouched(
    jobs: list[ImageJob], passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Run) -> None:
        raise RuntimeError("boom")

    events, alone = await drawn_beside(ImageEngine(DEVICE), jobs, monkeypatch, fail)
    assert isinstance(events[1], Failed)
    assert events[1].code == "engine_failed"
    check_healthy(events, alone, passes)


@pytest.mark.daily("text")
async def test_a_member_out_of_memory_is_drawn_again_by_itself_and_leaves_the_others_untouched(
    jobs: list[ImageJob], passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(_: Run) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    events, alone = await drawn_beside(ImageEngine(DEVICE), jobs, monkeypatch, run_out)
    assert difference(events[1], alone[1]) <= ROUNDING
    check_healthy(events, alone, passes)


@pytest.mark.daily("native reference", "guidance in two forwards")
async def test_a_shared_pass_out_of_memory_is_computed_alone(
    jobs: list[ImageJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, tried = ImageEngine(DEVICE), []
    monkeypatch.setattr(RowLimits, "record", lambda *_: None)  # else what each took alone lets only two begin
    alone = [await drawn(engine, job) for job in jobs]

    def run_out(_: ForwardMerger, requests: list[ForwardRequest]) -> list[Any]:
        tried.append(len(requests))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ForwardMerger, "_in_one_pass", run_out)
    events = await drawn_together(engine, jobs)
    assert tried[0] == 3
    assert [difference(event, images) for event, images in zip(events, alone, strict=True)] == [0, 0, 0]
