"""Measurements of calls that join others, on an engine in this process: what sharing forward passes gains, how soon a
newcomer draws, and what a mix of long and short calls waits."""

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.bare import DEVICE, bare_pipeline, draw, timed
from benchmarks.jobs import bench_job
from pipelines.checkpoints.work.estimate import work_units
from pipelines.images.engine import ImageEngine
from pipelines.protocol.images import Failed, ImageJob, Progress
from server.catalog.images import ImageModel

STEPS = (4, 8, 12, 20)  # of four callers that arrive half a step apart
BARE_STEPS = (4, 20)
BARE_LONG_STEPS = (2, 8)  # where one takes half a second
NEWCOMERS = 5  # the first of which does not count
HOST_STEPS = 40  # of the call that they join; they have more
TRACE_CALLS = 40
TRACE_ROUNDS = 5
TRACE_SIDES = (256, 384, 512, 672)
TRACE_STEPS = (4, 40)
SHORT_SHARE = 0.5  # of the trace, by work: whose waiting times count


@dataclass(frozen=True, slots=True)
class BareSteps:
    """Seconds of a denoising step by images in the batch, and of all that is no step, for one image."""

    step_s: dict[int, float]
    other_s: float

    def best_s(self) -> float:
        """Seconds of the four callers: in the best possible batch, which each leaves after its steps, or alone."""
        ends = sorted(STEPS)
        steps = [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        together = sum(count * self.step_s[4 - left] for left, count in enumerate(steps))
        return len(STEPS) * self.other_s + min(together, sum(STEPS) * self.step_s[1])


@dataclass(frozen=True, slots=True)
class Staggered:
    """Seconds of the four callers together, by rounds."""

    bare: BareSteps
    all_s: list[float]


@dataclass(frozen=True, slots=True)
class Joined:
    """Seconds from each newcomer's arrival to the end of its first step, and of the bare step of two images."""

    bare: BareSteps
    first_step_s: list[float]


def measure_bare_steps(model: ImageModel, side_px: int, most_rows: int, counts: tuple[int, int]) -> BareSteps:
    """Of a bare pipeline, from the difference of images of few and of many steps."""
    pipeline = bare_pipeline(model.checkpoint.path)
    seconds: dict[tuple[int, int], float] = {}
    for rows in range(1, most_rows + 1):
        draw(pipeline, replace(model, steps=1), (side_px, side_px), rows)
        for steps in counts:
            call = partial(draw, pipeline, replace(model, steps=steps), (side_px, side_px), rows)
            seconds[rows, steps] = min(timed(call) for _ in range(3))
    few, many = counts
    step_s = {rows: (seconds[rows, many] - seconds[rows, few]) / (many - few) for rows in range(1, most_rows + 1)}
    return BareSteps(step_s, seconds[1, few] - few * step_s[1])


def staggered(model: ImageModel, side_px: int) -> Staggered:
    """Four calls of other step counts, half a step apart, drawn at `side_px` as the bare pipeline draws. The first two
    rounds learn the limits."""
    bare = measure_bare_steps(model, side_px, most_rows=len(STEPS), counts=BARE_STEPS)

    async def measure() -> list[float]:
        engine, all_s = ImageEngine(DEVICE), []
        jobs = [_drawn_at_its_size(bench_job(model, side_px, side_px, steps)) for steps in STEPS]
        for _ in range(5):
            began = time.perf_counter()
            calls = []
            for number, job in enumerate(jobs):
                calls.append(asyncio.create_task(_follow(engine, replace(job, id=str(number)))))
                await asyncio.sleep(bare.step_s[1] / 2)
            await asyncio.gather(*calls)
            all_s.append(time.perf_counter() - began)
        return all_s[2:]

    return Staggered(bare, asyncio.run(measure()))


def newcomers(model: ImageModel, side_px: int) -> Joined:
    """Calls that come one after another, each half a step into a pass of one that runs, with more to do than it has.
    They leave after their first step."""
    bare = measure_bare_steps(model, side_px, most_rows=2, counts=BARE_LONG_STEPS)
    job = bench_job(model, side_px, side_px, 2 * HOST_STEPS)

    async def first_step(engine: ImageEngine, number: int) -> float:
        arrived = time.perf_counter()
        async with contextlib.aclosing(engine.submit(replace(job, id=f"newcomer {number}"))) as events:
            async for event in events:
                assert not isinstance(event, Failed), event.detail
                if isinstance(event, Progress):
                    break
        return time.perf_counter() - arrived

    async def measure() -> list[float]:
        engine, steps = ImageEngine(DEVICE), asyncio.Queue[Progress]()
        host = replace(job, id="host", sampling=replace(job.sampling, steps=HOST_STEPS))

        async def draw_host() -> None:
            async for event in engine.submit(host):
                assert not isinstance(event, Failed) or event.code == "cancelled", event.detail
                if isinstance(event, Progress):
                    steps.put_nowait(event)

        drawing = asyncio.create_task(draw_host())
        first_step_s = []
        for number in range(NEWCOMERS):
            for _ in range(steps.qsize() + 3):  # the last newcomer has left
                await steps.get()
            await asyncio.sleep(bare.step_s[1] / 2)
            first_step_s.append(await first_step(engine, number))
        engine.cancel(host.id)
        await drawing
        return first_step_s[1:]

    return Joined(bare, asyncio.run(measure()))


def _drawn_at_its_size(job: ImageJob) -> ImageJob:
    """Not at the checkpoint's native size and reduced."""
    return replace(job, checkpoint=replace(job.checkpoint, native_area_px=job.width_px * job.height_px))


@dataclass(frozen=True, slots=True)
class Waits:
    """The short half of a trace: seconds from arrival to the image, and the part of all steps that was done by then,
    which is the order's own doing and not the machine's."""

    seconds: list[float]
    done: list[float]


def mixed_trace(model: ImageModel) -> list[tuple[Waits, Waits]]:
    """Waits of 40 calls that come at once, long ones first: in order, and as they are scheduled. Rounds of the two
    alternate, as the tail of one is a few seconds. `model` must draw each at its size."""
    chooser = random.Random(7)
    sizes = [(chooser.choice(TRACE_SIDES), chooser.randint(*TRACE_STEPS)) for _ in range(TRACE_CALLS)]
    sizes.sort(key=lambda size: -(size[0] ** 2 * size[1]))
    jobs = [replace(bench_job(model, side, side, steps), id=str(number)) for number, (side, steps) in enumerate(sizes)]
    short = range(int(TRACE_CALLS * (1 - SHORT_SHARE)), TRACE_CALLS)
    whole = {job.id: work_units(job) for job in jobs}

    async def trace(engine: ImageEngine, turn: contextlib.AbstractAsyncContextManager[object]) -> Waits:
        began, done = time.perf_counter(), dict.fromkeys(whole, 0.0)

        async def call(job: ImageJob) -> tuple[float, float]:
            async with turn:
                async for event in engine.submit(job):
                    assert not isinstance(event, Failed), event.detail
                    if isinstance(event, Progress):
                        done[job.id] = whole[job.id] * event.step / event.steps
            return time.perf_counter() - began, sum(done.values()) / sum(whole.values())

        ended = await asyncio.gather(*map(call, jobs))
        return Waits([ended[number][0] for number in short], [ended[number][1] for number in short])

    async def measure() -> list[tuple[Waits, Waits]]:
        engine = ImageEngine(DEVICE)
        await engine.prepare(jobs[0].checkpoint)
        await trace(engine, contextlib.nullcontext())  # in which the engine learns what sharing gains
        rounds = []
        for _ in range(TRACE_ROUNDS):
            in_order = await trace(engine, asyncio.Lock())
            rounds.append((in_order, await trace(engine, contextlib.nullcontext())))
        engine.close()
        return rounds

    return asyncio.run(measure())


def percentile(seconds: Sequence[float], percent: int) -> float:
    """By interpolation between the nearest values."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


async def _follow(engine: ImageEngine, job: ImageJob) -> None:
    """Draw an image."""
    async for event in engine.submit(job):
        assert not isinstance(event, Failed), event.detail
