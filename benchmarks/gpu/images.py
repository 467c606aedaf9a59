"""Whole images of FLUX.1's size: Darkroom against the library's own call. Both encode a new prompt for each, and both
end with the file.
"""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu.engine import GUIDANCE, PROMPT, SEED, Bench, difference, serving
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.networks import flux_pipeline
from benchmarks.gpu.report import Report
from pipelines.images.prompts.cache import PromptCache
from pipelines.protocol.finished_image import encode_file
from pipelines.protocol.images import Encoding, Event, ImageJob, Progress


async def images(machine: Machine, report: Report) -> None:
    """What Darkroom adds to the bare pipeline, turns that change no bit, and what batches change."""
    pipeline = flux_pipeline(machine)
    bare_s = bare_seconds(machine, pipeline)
    report.add("bare pipeline", bare_s, "s")
    machine.reset_peak()
    with serving(machine, pipeline) as bench:
        one_s = await bench.timed(bench.job())
        report.add("Darkroom", one_s, "s", goal="bare x 1.01, 3.5 s on an H200", over_bare=one_s / bare_s)
        few = bench.job(id="few", steps=4)
        bare_few_s = bare_seconds(machine, pipeline, steps=4)
        few_s = await bench.timed(few)
        report.add("Darkroom, 4 steps", few_s, "s", goal="bare x 1.03", over_bare=few_s / bare_few_s)
        shown_s = await bench.timed(bench.job(previews=3))
        report.add("Darkroom with three previews", shown_s, "s", over_none=shown_s / one_s)
        alone, again = [(await bench.draw(bench.job()))[0] for _ in range(2)]
        report.add("the same job twice", bool((alone == again).all()), goal="True", deviation=float(alone.std()))
        await take_turns(bench, report, alone)
        for rows in (2,) if machine.tiny else (2, 4):
            facts = difference((await bench.draw(bench.job(n=rows)))[0], alone)
            taken = await bench.timed(bench.job(n=rows), rounds=1)
            report.add("images in a batch", taken, "s", rows=rows, over_one_by_one=taken / rows / one_s, **facts)
    report.add("peak memory", machine.peak_gib, "GiB")


async def take_turns(bench: Bench, report: Report, alone: Any) -> None:
    """A draft of another shape overtakes an image, which must be the one that it is alone."""
    draft = bench.job(id="draft", steps=2, height_px=bench.job().height_px // 2, seed=8)
    draft_s = await bench.timed(draft)
    under_way = asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Progress):
            under_way.set()

    long = asyncio.create_task(bench.draw(bench.job(id="long"), on_event))
    long.add_done_callback(lambda _: under_way.set())  # it may have failed before
    await under_way.wait()
    began = time.perf_counter()
    await bench.draw(replace(draft, prompt="a draft of a boat"))
    beside_s = time.perf_counter() - began
    (overtaken,) = await long
    report.add("an image that was overtaken is the same", bool((overtaken == alone).all()), goal="True")
    report.add("draft beside an image", beside_s, "s", over_alone=beside_s / draft_s)


async def crowd(machine: Machine, report: Report) -> None:
    """Twenty calls of one image at once, as others have published tails: FLUX.1 on a B200, p50 67 s and p99 111 s."""
    count = 4 if machine.tiny else 20
    with serving(machine, flux_pipeline(machine)) as bench:
        alone_s = await bench.timed(bench.job(), rounds=1)
        began, answered = time.perf_counter(), []

        async def call(number: int) -> None:
            await bench.draw(bench.job(id=f"{number}", seed=number, prompt=f"{number} boats", owner=f"{number}"))
            answered.append(time.perf_counter() - began)

        await asyncio.gather(*map(call, range(count)))
    answered.sort()
    report.add("one call alone", alone_s, "s")
    report.add("calls at once: median answer", answered[count // 2], "s", calls=count)
    report.add("calls at once: last answer", answered[-1], "s", over_one_by_one=answered[-1] / alone_s / count)


async def merged(machine: Machine, report: Report) -> None:
    """Calls at once, of several numbers of steps, against the best batches of the bare pipeline."""
    pipeline = flux_pipeline(machine)
    side = 64 if machine.tiny else 512
    one_s = bare_seconds(machine, pipeline, side=side)
    four_s = 4 * one_s
    for rows in (2, 4):
        four_s = min(four_s, 4 / rows * bare_seconds(machine, pipeline, rows, side=side))
    report.add("bare, four images in the best batches", four_s, "s", side=side, gain=4 * one_s / four_s)
    with serving(machine, pipeline) as bench:

        def jobs(name: str, count: int) -> list[ImageJob]:
            """Of prompts that nobody has used."""
            plain = bench.job(width_px=side, height_px=side)
            return [replace(plain, id=f"{name} {n}", seed=n, prompt=f"{n} boats, {name}") for n in range(count)]

        await asyncio.gather(*map(bench.draw, jobs("first", 4)))  # checks that rows are independent
        for name, count in (("four calls at once", 4), ("two calls at once", 2)):
            called = jobs(name, count)
            began = time.perf_counter()
            together = await asyncio.gather(*map(bench.draw, called))
            taken = time.perf_counter() - began
            facts = {"gain": count * one_s / taken, "over_best_bare": taken / (four_s * count / 4)}
            facts |= difference(together[0][0], (await bench.draw(called[0]))[0])
            report.add(name, taken, "s", goal="gain >= 2.7 for four at 512 x 512", **facts)
        fewest = 4 if machine.tiny else 16
        late = [
            replace(job, sampling=replace(job.sampling, steps=fewest + 4 * n)) for n, job in enumerate(jobs("late", 4))
        ]
        began = time.perf_counter()
        await asyncio.gather(*map(bench.draw, late))
        done = sum(job.sampling.steps for job in late)
        per_step_s = one_s / bench.job().sampling.steps
        taken = time.perf_counter() - began
        report.add("four calls of several numbers of steps", taken, "s", gain=done * per_step_s / taken)


async def large(machine: Machine, report: Report) -> None:
    """A 4K image: how often its prompt is encoded, and its peak memory, with kept embeddings and without."""
    pipeline = flux_pipeline(machine)
    calls: list[int] = []
    pipeline.text_encoder_2.register_forward_pre_hook(lambda *_: calls.append(1))
    size = {"width_px": 192, "height_px": 128} if machine.tiny else {"width_px": 3840, "height_px": 2160}
    attach = PromptCache.attach
    with serving(machine, pipeline) as bench:
        for name in ("with kept prompts", "without"):
            if name == "without":
                PromptCache.attach = lambda *_: None  # type: ignore[method-assign]
            try:
                del calls[:]
                machine.reset_peak()
                began = time.perf_counter()
                await bench.draw(bench.job(id=name, prompt=f"a boat, {name}", **size))
                taken = time.perf_counter() - began
            finally:
                PromptCache.attach = attach  # type: ignore[method-assign]
            report.add(f"4K image {name}", taken, "s", encoded=len(calls), peak_gib=machine.peak_gib)


def bare_seconds(machine: Machine, pipeline: Any, rows: int = 1, **sizes: int) -> float:
    """The median seconds of `draw_bare` for so many images, with new prompts in each round."""
    numbers = itertools.count()
    return machine.timed(
        lambda: draw_bare(machine, pipeline, [f"{PROMPT}, {next(numbers)} of them" for _ in range(rows)], **sizes)
    )


def draw_bare(
    machine: Machine, pipeline: Any, prompts: Sequence[str], side: int | None = None, steps: int | None = None
) -> list[bytes]:
    """The library's own call for some images at once, and the files that Darkroom makes of them."""
    side = side or (64 if machine.tiny else 1024)
    steps = steps or (3 if machine.tiny else 28)
    seeds = range(SEED, SEED + len(prompts))
    with torch.inference_mode():
        images = pipeline(
            list(prompts), width=side, height=side, num_inference_steps=steps, guidance_scale=GUIDANCE,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
        ).images  # fmt: skip
    return [encode_file(image, Encoding(), {"seed": seed}) for image, seed in zip(images, seeds, strict=True)]
