"""What warmup withdraws, by what an engine would answer to each probe."""

import io
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.work.plan import fit_refine_strength, partial, plan_image
from pipelines.images.drawing.image_checks import NOT_NUMBERS, ONE_COLOUR, InvalidImage
from pipelines.images.warmup.capability_checks import CapabilityChecker
from pipelines.protocol.images import CheckpointSpec, Control, EncodedImage, ImageJob
from pipelines.protocol.messages import Capabilities

SPEC = CheckpointSpec("x", Path("x"), None, "beta", "native", 16)
ALL = Capabilities(
    text=True, references=16, mask=True, second_pass=True, negative_prompt=True, guidance=True, any_steps=True
)
FOUND = replace(ALL, negative_prompt_above=1.0)


def by_guidance(job: ImageJob, above: float = 1.0) -> int:
    guidance = job.sampling.guidance
    return int(guidance * 10) + (len(job.sampling.negative_prompt) if guidance > above else 0)


def all_inputs(job: ImageJob) -> bytes:
    """What an image depends on, beside guidance."""
    return job.prompt.encode() + b"".join(image.data for image in job.references)


class Engine:
    """Draws a colour that depends on the guidance and what it guides away from, with two white pixels and one by what
    it `reads`. Fails where it is told so, and leaves the pixels out of images that `is_plain` names."""

    def __init__(
        self, fails: Any = lambda _: None, colour: Any = by_guidance, reads: Any = all_inputs,
        is_plain: Any = lambda _: False,
    ) -> None:  # fmt: skip
        self.fails, self.colour, self.reads, self.is_plain = fails, colour, reads, is_plain
        self.jobs: list[ImageJob] = []

    async def draw(self, job: ImageJob) -> tuple[EncodedImage, ...] | str:
        self.jobs.append(job)
        if (failed := self.fails(job)) is not None:
            return str(failed)
        file = io.BytesIO()
        image = Image.new("L", (job.width_px, job.height_px), self.colour(job))
        if not self.is_plain(job):
            image.putpixel((0, 0), 255)
            image.putpixel((image.width - 1, 0), 255)
            image.putpixel((1, 0), zlib.crc32(self.reads(job)) % 251)
        image.save(file, "PNG")
        return (EncodedImage(file.getvalue(), "image/png", job.width_px, job.height_px, job.seed),) * job.n


async def find(engine: Engine, *, native: bool = False, spec: CheckpointSpec = SPEC) -> Capabilities:
    return await CapabilityChecker(spec, 16, engine.draw).find_capabilities(ALL, warmup_native=native)


async def test_what_works_stays() -> None:
    engine = Engine()
    assert await find(engine) == FOUND
    assert len({job.sampling.steps for job in engine.jobs}) == 2
    assert max(len(job.references) for job in engine.jobs) == 2


@pytest.mark.parametrize(
    ("fails", "failed_checks", "what"),
    [
        (lambda job: "no" if len(job.references) > 1 else None, {"references": 1}, ["two references"]),
        (
            lambda job: "no" if job.references and job.mask is None else None,
            {"references": 0},
            ["a reference"],  # and then two are not tried
        ),
        (lambda job: "no" if job.mask else None, {"mask": False}, ["a mask"]),
        (
            lambda job: "no" if job.sampling.negative_prompt else None,
            {"negative_prompt": False, "negative_prompt_above": None},
            ["a negative prompt"],
        ),
        (lambda job: "no" if job.sampling.steps != 2 else None, {"any_steps": False}, ["another number of steps"]),
    ],
)
async def test_what_fails_is_withdrawn_with_its_reason(
    fails: Any, failed_checks: dict[str, Any], what: list[str]
) -> None:
    found = await find(Engine(fails))
    assert replace(found, failed_checks=()) == replace(FOUND, **failed_checks)
    assert [each.what for each in found.failed_checks] == what
    assert str(found.failed_checks[0]).endswith(": no")


async def test_a_shape_that_cannot_be_drawn_is_withdrawn_with_the_second_pass() -> None:
    found = await find(Engine(lambda job: "another shape" if job.width_px != job.height_px else None))
    assert (found.any_ratio, found.second_pass) == (False, False)


async def test_the_second_pass_is_tried_where_larger_images_are_only_scaled() -> None:
    """The capabilities are those of the weights, which another catalog file may serve with two passes."""
    engine = Engine()
    assert await find(engine, spec=replace(SPEC, enlarge="resize")) == FOUND
    assert any(two_passes(job) for job in engine.jobs)


async def test_a_checkpoint_of_fixed_steps_refines_in_some_of_them() -> None:
    """The default strength of a second pass is less than one of two steps."""
    assert fit_refine_strength(SPEC.sampling.resolve(steps=2)).refine_strength == 0.5

    def fails(job: ImageJob) -> str | None:
        strength = job.sampling.refine_strength if two_passes(job) else 1.0
        return None if partial(job.sampling.steps, strength).steps == 2 else "two steps alone"

    assert replace(await find(Engine(fails)), failed_checks=()) == replace(FOUND, any_steps=False)


def two_passes(job: ImageJob) -> bool:
    return plan_image(job.checkpoint, job.width_px, job.height_px, 16).finish == "refine"


@pytest.mark.parametrize(
    ("fails", "colour", "why"),
    [
        (lambda job: "busy" if job.n > 1 else None, None, "busy"),
        (lambda _: None, lambda job: (50 if job.n > 1 else 0) + job.seed, "they are not what each is alone: 50 of 255"),
        (lambda _: None, lambda job: 3 if job.n > 1 else 0, None),  # rounding
    ],
)
async def test_images_that_disturb_each_other_come_one_by_one(fails: Any, colour: Any, why: str | None) -> None:
    guided = replace(ALL, guidance=False, negative_prompt=False)
    capabilities = await CapabilityChecker(SPEC, 16, Engine(fails, colour or (lambda _: 0)).draw).find_capabilities(
        guided, warmup_native=False
    )
    assert capabilities.at_once == (why is None)
    assert [each.why.startswith(why) for each in capabilities.failed_checks if why] == ([True] if why else [])


async def test_what_does_not_draw_in_one_step_is_tried_in_two() -> None:
    failing = Engine(lambda job: "no" if job.sampling.steps == 1 else None)
    not_finite = Engine(lambda job: NOT_NUMBERS if job.sampling.steps == 1 else None)
    blank = Engine(is_plain=lambda job: job.sampling.steps == 1)
    for engine in (failing, not_finite, blank):
        assert await find(engine) == FOUND
        assert [job.sampling.steps for job in engine.jobs].count(1) == 1


async def test_guidance_that_changes_nothing_is_withdrawn() -> None:
    found = await find(Engine(colour=lambda _: 7))
    assert found == replace(ALL, guidance=False, negative_prompt=False, failed_checks=found.failed_checks)
    assert [str(each) for each in found.failed_checks] == [
        "guidance: it changes nothing", "a negative prompt: it changes nothing",
    ]  # fmt: skip


@pytest.mark.parametrize("above", [0.0, 1.0])
async def test_a_negative_prompt_is_tried_at_little_guidance_too(above: float) -> None:
    spec = replace(SPEC, sampling=replace(SPEC.sampling, negative_prompt="blurred"))  # which must not hide it
    found = await find(Engine(colour=lambda job: by_guidance(job, above)), spec=spec)
    assert found == replace(ALL, negative_prompt_above=above)


async def test_after_a_native_image_the_others_are_compared_with_a_small_one() -> None:
    engine = Engine()
    assert await find(engine, native=True) == FOUND
    assert [engine.jobs[0].width_px, engine.jobs[1].width_px] == [1024, 256]


async def test_nothing_that_draws_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="loads and does not draw: no kernel"):
        await find(Engine(lambda _: "no kernel"))


async def test_schedulers_are_tried_and_named() -> None:
    spec = replace(SPEC, schedulers=("AScheduler", "BScheduler"))
    found = await find(Engine(lambda job: "no" if job.sampling.scheduler == "BScheduler" else None), spec=spec)
    assert found.unsupported_schedulers == ("BScheduler",)
    assert str(found.failed_checks[0]) == "the scheduler BScheduler: no"


def changing(is_other: Any, by: int) -> Engine:
    """Draws a job that `is_other` otherwise the next time, by so many of 255."""
    engine = Engine()
    engine.colour = lambda job: by_guidance(job) + (by * (engine.jobs.count(job) - 1) if is_other(job) else 0)
    return engine


@pytest.mark.parametrize(("by", "reproducible"), [(2, False), (1, True)])
async def test_a_checkpoint_that_draws_another_image_each_time_is_told(by: int, reproducible: bool) -> None:
    """A last bit may be of kernels."""
    found = await find(changing(lambda job: job.n == 1, by))
    assert found.reproducible == reproducible
    told = [each.why for each in found.failed_checks if each.what == "the same image from a seed"]
    assert told == ([] if reproducible else ["its noise is another each time: 2 of 255 apart"])


@pytest.mark.parametrize("what", ["a reference", "a mask"])
async def test_noise_of_a_reference_or_a_mask_alone_is_told(what: str) -> None:
    found = await find(
        changing(
            lambda job: job.n == 1 and len(job.references) == 1 and (job.mask is None) == (what == "a reference"), 9
        )
    )
    told = [str(each) for each in found.failed_checks if "seed" in each.what]
    assert told == [f"the same image from a seed: with {what}: its noise is another each time: 9 of 255 apart"]
    assert not found.reproducible


async def test_a_scheduler_that_draws_another_image_each_time_is_not_offered() -> None:
    spec = replace(SPEC, schedulers=("AScheduler", "BScheduler"))
    found = await find(changing(lambda job: job.sampling.scheduler == "BScheduler", 9), spec=spec)
    assert (found.unsupported_schedulers, found.reproducible) == (("BScheduler",), True)
    assert str(found.failed_checks[0]) == "the scheduler BScheduler: its noise is another each time: 9 of 255 apart"


async def test_schedulers_stay_where_the_checkpoints_own_images_differ() -> None:
    spec = replace(SPEC, schedulers=("AScheduler",))
    found = await find(changing(lambda job: job.n == 1, 9), spec=spec)
    assert (found.unsupported_schedulers, found.reproducible) == ((), False)


BLANK: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a reference": (lambda job: len(job.references) == 1 and job.mask is None, {"references": 0}, "a reference"),
    "two references": (lambda job: len(job.references) == 2, {"references": 1}, "two references"),
    "a mask": (lambda job: job.mask is not None, {"mask": False}, "a mask"),
    "guidance": (lambda job: job.sampling.guidance > 4, {"guidance": False, "negative_prompt_above": None}, "guidance"),
    "a scheduler": (
        lambda job: job.sampling.scheduler is not None, {"unsupported_schedulers": ("AScheduler",)},
        "the scheduler AScheduler",
    ),
    "a second pass": (lambda job: two_passes(job), {"second_pass": False}, "a second pass"),
}  # fmt: skip


@pytest.mark.parametrize(("is_blank", "without", "what"), BLANK.values(), ids=BLANK)
@pytest.mark.parametrize("not_finite", [False, True])
async def test_an_capability_that_draws_no_image_is_withdrawn(
    is_blank: Any, without: dict[str, Any], what: str, not_finite: bool
) -> None:
    spec = replace(SPEC, schedulers=("AScheduler",))
    reason = f"{NOT_NUMBERS}: a remedy" if not_finite else ONE_COLOUR
    engine = Engine(lambda job: reason if is_blank(job) else None) if not_finite else Engine(is_plain=is_blank)
    found = await find(engine, spec=spec)
    assert replace(found, failed_checks=()) == replace(FOUND, **without)
    assert [str(each) for each in found.failed_checks] == [f"{what}: {reason}"]


async def test_a_plain_half_of_an_image_is_seen() -> None:
    """Under a mask the reference's own pixels are around it, and of two tiles one may be black."""

    class HalfBlack(Engine):
        async def draw(self, job: ImageJob) -> tuple[EncodedImage, ...] | str:
            (drawn, *_) = await super().draw(job)
            assert isinstance(drawn, EncodedImage)
            with Image.open(io.BytesIO(drawn.data)) as image:
                if job.mask is not None or two_passes(job):
                    image.paste(0, (0, 0, image.width // 2, image.height))
                image.save(file := io.BytesIO(), "PNG")
            return (replace(drawn, data=file.getvalue()),) * job.n

    found = await find(HalfBlack())
    assert (found.mask, found.second_pass) == (False, False)


@pytest.mark.parametrize("steps", [(1,), (1, 2), (1, 2, 3)])
async def test_an_image_that_few_steps_leave_plain_is_drawn_in_more(steps: tuple[int, ...]) -> None:
    """All that is compared with it takes as many."""
    engine = Engine(is_plain=lambda job: job.sampling.steps in steps)
    assert await find(engine) == FOUND
    assert max(job.sampling.steps for job in engine.jobs) <= 5


async def test_what_draws_one_colour_alone_is_refused() -> None:
    engine = Engine(is_plain=lambda _: True)
    with pytest.raises(CheckpointError, match="x loads and does not draw: its images have one colour; its weights"):
        await find(engine)
    assert len({job.seed for job in engine.jobs}) > 1, "another noise was tried too"


async def test_what_draws_no_numbers_is_refused_with_the_remedy() -> None:
    reason = str(InvalidImage(torch.float16))
    assert reason.endswith('runtime.dtype = "bfloat16" or "float32" may help')
    with pytest.raises(CheckpointError, match=f"x loads and does not draw: {re.escape(reason)}"):
        await find(Engine(lambda _: reason))


async def test_a_second_reference_that_changes_nothing_is_withdrawn() -> None:
    """A class that takes a list of references as a batch draws from the first alone."""
    found = await find(Engine(reads=lambda job: all_inputs(replace(job, references=job.references[:1]))))
    assert replace(found, failed_checks=()) == replace(FOUND, references=1)
    assert [str(each) for each in found.failed_checks] == ["two references: the second changes nothing"]


async def test_a_reference_that_changes_nothing_is_withdrawn() -> None:
    found = await find(Engine(reads=lambda job: job.prompt.encode()))
    assert replace(found, failed_checks=()) == replace(FOUND, references=0)
    assert [str(each) for each in found.failed_checks] == ["a reference: it changes nothing"]


def without_prompt(job: ImageJob) -> bytes:
    return all_inputs(replace(job, prompt=""))


@pytest.mark.parametrize(("announced", "why"), [(True, "it changes nothing"), (False, "it takes none")])
async def test_a_prompt_that_changes_nothing_is_told(announced: bool, why: str) -> None:
    """Images can be edited without one, and nothing is drawn from one alone."""
    checker = CapabilityChecker(SPEC, 16, Engine(reads=without_prompt).draw)
    found = await checker.find_capabilities(replace(ALL, prompt=announced), warmup_native=False)
    assert replace(found, failed_checks=()) == replace(FOUND, prompt=False, text=False)
    assert [str(each) for each in found.failed_checks] == [f"a prompt: {why}"]
    from_text = replace(ALL, references=0, mask=False, prompt=announced)
    with pytest.raises(CheckpointError, match=f"does not draw what a prompt says: {why}"):
        await checker.find_capabilities(from_text, warmup_native=False)


async def test_a_control_that_draws_no_image_is_withdrawn() -> None:
    nets = tuple(Control(name, "controlnet", Path(name)) for name in ("pose", "edges"))
    with_nets = replace(ALL, controlnets_with=("text", "mask"), controlnets_at_once=2)

    def is_blank(job: ImageJob) -> bool:
        return [control.name for control in job.controls] == ["edges"] or (bool(job.controls) and job.mask is not None)

    def reads(job: ImageJob) -> bytes:
        return all_inputs(job) + "".join(control.name for control in job.controls).encode()

    checker = CapabilityChecker(replace(SPEC, controls=nets), 16, Engine(reads=reads, is_plain=is_blank).draw)
    found = await checker.find_capabilities(with_nets, warmup_native=False)
    assert (found.unsupported_controls, found.controlnets_with) == (("edges",), ("text",))
    assert {str(each) for each in found.failed_checks} == {
        f"the control edges: {ONE_COLOUR}", f"the control pose with mask: {ONE_COLOUR}",
    }  # fmt: skip
