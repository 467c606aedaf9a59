"""Eight equal calls at once against a plain queue of them, on an engine in this process: the mean and the last answer.
On idle cores by the clock, as callers wait; beside a load by the processor time of this process, which other programs
do not change."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.bare import DEVICE
from benchmarks.jobs import bench_job
from pipelines.images.engine import ImageEngine
from pipelines.protocol.images import Failed, ImageJob
from server.catalog.images import ImageModel

CALLS = 8
LEARNING_ROUNDS = 3  # in which the engine measures what sharing gains
ROUNDS = 7  # of which the median counts; queue and crowd alternate


@dataclass(frozen=True, slots=True)
class Answers:
    """Seconds from the first call to the mean and to the last answer, by rounds."""

    mean_s: list[float]
    last_s: list[float]

    @classmethod
    def of(cls, rounds: list[list[float]]) -> "Answers":
        """Sum up rounds, each with the times of its answers."""
        return cls([fmean(each) for each in rounds], [max(each) for each in rounds])


@dataclass(frozen=True, slots=True)
class EqualCalls:
    """The same calls, one sent when the one before is answered, and all at once."""

    queue: Answers
    at_once: Answers


def equal_calls(model: ImageModel, side_px: int, steps: int, clock: Callable[[], float]) -> EqualCalls:
    """Draw eight images of one size and one number of steps, at `side_px` as they are."""
    job = bench_job(model, side_px, side_px, steps)
    job = replace(job, checkpoint=replace(job.checkpoint, native_area_px=side_px**2))

    async def measure() -> EqualCalls:
        engine = ImageEngine(DEVICE)
        await engine.prepare(job.checkpoint)
        for _ in range(LEARNING_ROUNDS):
            await _at_once(engine, job, clock)
        rounds = [(await _in_a_queue(engine, job, clock), await _at_once(engine, job, clock)) for _ in range(ROUNDS)]
        engine.close()
        queue, at_once = zip(*rounds, strict=True)
        return EqualCalls(Answers.of(list(queue)), Answers.of(list(at_once)))

    return asyncio.run(measure())


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy with another program, meanwhile."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


async def _at_once(engine: ImageEngine, job: ImageJob, clock: Callable[[], float]) -> list[float]:
    return await _answers(engine, job, clock, asyncio.gather)


async def _in_a_queue(engine: ImageEngine, job: ImageJob, clock: Callable[[], float]) -> list[float]:
    async def one_by_one(*calls: Awaitable[float]) -> list[float]:
        return [await call for call in calls]

    return await _answers(engine, job, clock, one_by_one)


async def _answers(
    engine: ImageEngine, job: ImageJob, clock: Callable[[], float], run: Callable[..., Awaitable[list[float]]]
) -> list[float]:
    """Return the seconds from the first call to each answer."""
    began = clock()

    async def call(number: int) -> float:
        async for event in engine.submit(replace(job, id=str(number), seed=number)):
            assert not isinstance(event, Failed), event.detail
        return clock() - began

    return await run(*(call(number) for number in range(CALLS)))
