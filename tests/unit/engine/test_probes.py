"""What warmup withdraws, by what an engine would answer to each probe."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.catalog.plan import in_own_steps, partial, plan_picture
from pipelines.images.probes import Prober
from pipelines.protocol.images import CheckpointSpec, EncodedImage, ImageJob
from pipelines.protocol.messages import Abilities

SPEC = CheckpointSpec("x", Path("x"), None, "beta", "native", 16)
ALL = Abilities(
    text=True, references=16, mask=True, second_pass=True, negative_prompt=True, guidance=True, any_steps=True
)
FOUND = replace(ALL, negative_prompt_above=1.0)


def by_guidance(job: ImageJob, above: float = 1.0) -> int:
    guidance = job.sampling.guidance
    return int(guidance * 10) + (len(job.sampling.negative_prompt) if guidance > above else 0)


class Engine:
    """Draws a colour that depends on the guidance and what it guides away from, with a white pixel, and fails where it
    is told so."""

    def __init__(self, fails: Any = lambda _: None, colour: Any = by_guidance) -> None:
        self.fails, self.colour = fails, colour
        self.plain_in: int | None = None  # steps
        self.jobs: list[ImageJob] = []

    async def draw(self, job: ImageJob) -> tuple[EncodedImage, ...] | str:
        self.jobs.append(job)
        if (failed := self.fails(job)) is not None:
            return str(failed)
        file = io.BytesIO()
        image = Image.new("L", (job.width_px, job.height_px), self.colour(job))
        if job.sampling.steps != self.plain_in:
            image.putpixel((0, 0), 255)
        image.save(file, "PNG")
        return (EncodedImage(file.getvalue(), "image/png", job.width_px, job.height_px, job.seed),) * job.n


async def find(engine: Engine, *, native: bool = False, spec: CheckpointSpec = SPEC) -> Abilities:
    return await Prober(spec, 16, engine.draw).find_abilities(ALL, warmup_native=native)


async def test_what_works_stays() -> None:
    engine = Engine()
    assert await find(engine) == FOUND
    assert len({job.sampling.steps for job in engine.jobs}) == 2
    assert max(len(job.references) for job in engine.jobs) == 2


@pytest.mark.parametrize(
    ("fails", "withdrawn", "what"),
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
async def test_what_fails_is_withdrawn_with_its_reason(fails: Any, withdrawn: dict[str, Any], what: list[str]) -> None:
    found = await find(Engine(fails))
    assert replace(found, withdrawn=()) == replace(FOUND, **withdrawn)
    assert [each.what for each in found.withdrawn] == what
    assert str(found.withdrawn[0]).endswith(": no")


async def test_a_shape_that_cannot_be_drawn_is_withdrawn_with_the_second_pass() -> None:
    found = await find(Engine(lambda job: "another shape" if job.width_px != job.height_px else None))
    assert (found.any_ratio, found.second_pass) == (False, False)


async def test_the_second_pass_is_tried_where_larger_pictures_are_only_scaled() -> None:
    """The abilities are those of the weights, which another catalog file may serve with two passes."""
    engine = Engine()
    assert await find(engine, spec=replace(SPEC, enlarge="resize")) == FOUND
    assert any(two_passes(job) for job in engine.jobs)


async def test_a_checkpoint_of_fixed_steps_refines_in_some_of_them() -> None:
    """The default strength of a second pass is less than one of two steps."""
    assert in_own_steps(SPEC.sampling.resolve(steps=2)).refine_strength == 0.5

    def fails(job: ImageJob) -> str | None:
        strength = job.sampling.refine_strength if two_passes(job) else 1.0
        return None if partial(job.sampling.steps, strength).steps == 2 else "two steps alone"

    assert replace(await find(Engine(fails)), withdrawn=()) == replace(FOUND, any_steps=False)


def two_passes(job: ImageJob) -> bool:
    return plan_picture(job.checkpoint, job.width_px, job.height_px, 16).finish == "refine"


@pytest.mark.parametrize(
    ("fails", "colour", "why"),
    [
        (lambda job: "busy" if job.n > 1 else None, None, "busy"),
        (lambda _: None, lambda job: (50 if job.n > 1 else 0) + job.seed, "they are not what each is alone: 50 of 255"),
        (lambda _: None, lambda job: 3 if job.n > 1 else 0, None),  # rounding
    ],
)
async def test_pictures_that_disturb_each_other_come_one_by_one(fails: Any, colour: Any, why: str | None) -> None:
    guided = replace(ALL, guidance=False, negative_prompt=False)
    abilities = await Prober(SPEC, 16, Engine(fails, colour or (lambda _: 0)).draw).find_abilities(
        guided, warmup_native=False
    )
    assert abilities.at_once == (why is None)
    assert [each.why.startswith(why) for each in abilities.withdrawn if why] == ([True] if why else [])


async def test_what_does_not_draw_in_one_step_is_tried_in_two() -> None:
    failing, blank = Engine(lambda job: "no" if job.sampling.steps == 1 else None), Engine()
    blank.plain_in = 1
    for engine in (failing, blank):
        assert await find(engine) == FOUND
        assert [job.sampling.steps for job in engine.jobs].count(1) == 1


async def test_guidance_that_changes_nothing_is_withdrawn() -> None:
    found = await find(Engine(colour=lambda _: 7))
    assert found == replace(ALL, guidance=False, negative_prompt=False, withdrawn=found.withdrawn)
    assert [str(each) for each in found.withdrawn] == [
        "guidance: it changes nothing", "a negative prompt: it changes nothing",
    ]  # fmt: skip


@pytest.mark.parametrize("above", [0.0, 1.0])
async def test_a_negative_prompt_is_tried_at_little_guidance_too(above: float) -> None:
    spec = replace(SPEC, sampling=replace(SPEC.sampling, negative_prompt="blurred"))  # which must not hide it
    found = await find(Engine(colour=lambda job: by_guidance(job, above)), spec=spec)
    assert found == replace(ALL, negative_prompt_above=above)


async def test_after_a_native_picture_the_others_are_compared_with_a_small_one() -> None:
    engine = Engine()
    assert await find(engine, native=True) == FOUND
    assert [engine.jobs[0].width_px, engine.jobs[1].width_px] == [1024, 256]


async def test_nothing_that_draws_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="loads and does not draw: no kernel"):
        await find(Engine(lambda _: "no kernel"))


async def test_schedulers_are_tried_and_named() -> None:
    spec = replace(SPEC, schedulers=("AScheduler", "BScheduler"))
    found = await find(Engine(lambda job: "no" if job.sampling.scheduler == "BScheduler" else None), spec=spec)
    assert found.unfit_schedulers == ("BScheduler",)
    assert str(found.withdrawn[0]) == "the scheduler BScheduler: no"
