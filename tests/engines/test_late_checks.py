"""A checkpoint serves after what its first call needs was tried; the other checks follow while it serves."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pipelines.checkpoints.errors import NotServed
from pipelines.images.drawing import run
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.engine import ImageEngine
from pipelines.images.scheduling.batching import CHECK_PREFIX
from pipelines.protocol.images import CheckpointSpec, Event, Failed, Finished, ImageJob, RawImage
from pipelines.protocol.messages import Capabilities
from tests.engines.device import DEVICE
from tests.engines.shared_passes import last_event

Spec = Callable[[str], CheckpointSpec]
Job = Callable[..., ImageJob]
GREY = RawImage(64, 64, "RGB", bytes(range(64)) * 192)
MASK = RawImage(64, 64, "L", (b"\xff" * 32 + b"\0" * 32) * 64)


@dataclass
class Serving:
    """An engine that is asked for some images at the moment at which a checkpoint begins to serve. `ended` has what
    ended, in order: the id of a call, or what a check drew."""

    engine: ImageEngine
    spec: CheckpointSpec
    calls: list[Awaitable[Event]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    begun: Capabilities | None = None

    @classmethod
    def with_calls(cls, spec: CheckpointSpec, *jobs: ImageJob) -> "Serving":
        serving = cls(ImageEngine(DEVICE), spec)
        serving.engine._on_serving = lambda *found: serving._begin(found[1], jobs)
        submit = serving.engine._warmup._submit

        async def noted(job: ImageJob) -> Any:
            assert job.id.startswith(CHECK_PREFIX)
            async for event in submit(job):
                if isinstance(event, Finished | Failed):
                    serving.ended.append(_drawn_from(job))
                yield event

        serving.engine._warmup._submit = noted
        return serving

    def _begin(self, found: Capabilities, jobs: tuple[ImageJob, ...]) -> None:
        self.begun = found
        self.ended.append("serves")
        self.calls = [asyncio.ensure_future(self._call(job)) for job in jobs]

    async def _call(self, job: ImageJob) -> Event:
        event = await last_event(self.engine, job)
        self.ended.append(job.id)
        return event

    async def prepare(self) -> Capabilities:
        found = await self.engine.prepare(self.spec)
        self.ended.append("tried")
        return found

    async def events(self) -> list[Event]:
        return list(await asyncio.gather(*self.calls))


def _drawn_from(job: ImageJob) -> str:
    kind = "mask" if job.mask else "reference" if job.references else "text"
    return kind if job.width_px == job.height_px else f"wide {kind}"


class Maskless(ImagePipeline):
    """Fails to repaint under a mask."""

    def draw(self) -> Any:
        if self.job.mask is not None:
            raise RuntimeError("no kernel for masks")
        return super().draw()


async def test_a_call_is_drawn_before_what_it_does_not_need_was_tried(spec: Spec, job: Job) -> None:
    serving = Serving.with_calls(spec("sd"), job("sd", id="plain"))
    found = await serving.prepare()
    assert isinstance((await serving.events())[0], Finished)
    before = serving.ended[: serving.ended.index("serves")]
    assert set(before) == {"text"}
    assert len(before) == (4 if DEVICE.type == "cpu" else 5)  # a GPU's kernels are built for the native size, too
    later = serving.ended[serving.ended.index("plain") :]
    assert {"wide text", "reference", "mask"} <= set(later)
    assert serving.begun is not None
    assert (serving.begun.unit_s or 0) > 0
    assert replace(found, unit_s=None, negative_prompt_above=None) == replace(serving.begun, unit_s=None)


async def test_a_call_waits_for_the_check_of_what_it_needs_and_for_no_other(spec: Spec, job: Job) -> None:
    edit = job("sd", id="edit", references=(GREY,), mask=MASK)
    negative = job("sd", id="negative", negative_prompt="blurred")
    serving = Serving.with_calls(spec("sd"), negative, edit)
    await serving.prepare()
    assert all(isinstance(event, Finished) for event in await serving.events())
    assert "mask" in serving.ended[: serving.ended.index("edit")]
    assert serving.ended.index("edit") < serving.ended.index("negative")


@pytest.mark.daily("mask")
@pytest.mark.parametrize("when", ["mask", "late"])
async def test_what_fails_its_check_is_not_drawn_for_calls_that_came_before(
    when: str, spec: Spec, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for one whose request was checked before the server knew of it."""
    monkeypatch.setattr(run, "ImagePipeline", Maskless)
    edit = job("sd", id="edit", references=(GREY,), mask=MASK)
    serving = Serving.with_calls(spec("sd"), *([edit] if when == "mask" else []))
    assert not (await serving.prepare()).mask
    event = (await serving.events())[0] if when == "mask" else await last_event(serving.engine, edit)
    assert isinstance(event, Failed)
    assert (event.code, event.param) == ("unsupported", "mask")
    assert "no kernel for masks" in event.message
    assert isinstance(await last_event(serving.engine, job("sd", id="plain")), Finished)


async def test_images_share_no_pass_until_two_at_once_were_tried(spec: Spec, job: Job) -> None:
    serving = Serving.with_calls(spec("sd"), job("sd", id="one"), job("sd", id="other", seed=2))
    await serving.prepare()
    assert not any(event.merged for event in await serving.events() if isinstance(event, Finished))
    two = await last_event(serving.engine, job("sd", id="two", n=2))
    assert isinstance(two, Finished)
    assert two.merged


async def test_checks_for_which_nobody_waits_come_after_all_calls(spec: Spec, job: Job) -> None:
    """Of another checkpoint, whose image has begun and needs the device for longer."""
    long = job("klein", id="long", steps=12)
    serving = Serving.with_calls(spec("sd"), long)
    await serving.engine.load(spec("klein"))
    await serving.prepare()
    await serving.events()
    begun = serving.ended.index("serves")
    assert serving.ended.index("long") <= begun + 2  # one check may have had the device when it came


async def test_a_checkpoint_that_is_no_longer_served_is_tried_no_further(spec: Spec, job: Job) -> None:
    serving = Serving.with_calls(spec("sd"))
    begin = serving.engine._on_serving

    def dropped(*found: Any) -> None:
        begin(*found)
        serving.engine.unload_except(())

    serving.engine._on_serving = dropped
    with pytest.raises(NotServed):
        await serving.prepare()
    assert serving.ended[-1] == "serves"
    serving.engine._on_serving = begin
    assert (await serving.prepare()).mask


async def test_a_call_that_waits_for_a_check_can_be_cancelled(spec: Spec, job: Job) -> None:
    edit = job("sd", id="edit", references=(GREY,))
    serving = Serving.with_calls(spec("sd"), edit)
    begin = serving.engine._on_serving

    def cancelled(*found: Any) -> None:
        begin(*found)
        asyncio.get_running_loop().call_soon(
            lambda: asyncio.get_running_loop().call_soon(serving.engine.cancel, "edit")
        )

    serving.engine._on_serving = cancelled
    await serving.prepare()
    (event,) = await serving.events()
    assert isinstance(event, Failed)
    assert event.code == "cancelled"
    assert not serving.engine._held


async def test_models_of_one_checkpoint_are_tried_once(spec: Spec) -> None:
    serving = Serving.with_calls(spec("sd"))
    other = replace(spec("sd"), name="other")
    begin = serving.engine._on_serving
    others: list[asyncio.Future[Capabilities]] = []

    def also(*found: Any) -> None:
        if found[0].name != "other":
            begin(*found)
            others.append(asyncio.ensure_future(serving.engine.prepare(other)))

    serving.engine._on_serving = also
    found = await serving.prepare()
    tried = len(serving.ended)
    assert replace(await others[0], unit_s=None) == replace(found, unit_s=None)
    assert len(serving.ended) == tried
