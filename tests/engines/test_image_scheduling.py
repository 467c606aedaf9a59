"""Scheduling, previews and memory, with real pipelines."""

import asyncio
import io
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pipelines.checkpoints.errors import CheckpointError
from pipelines.device.memory import Budgets
from pipelines.images.denoising.step_observer import Pixels
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.drawing.run import due_preview
from pipelines.images.engine import ImageEngine
from pipelines.images.job_files import encode
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.checkpoint_cache import InsufficientMemory, LoadedCheckpoint
from pipelines.images.scheduling.scheduler import DeviceTurn
from pipelines.protocol.images import (
    CheckpointSpec,
    EncodedImage,
    Encoding,
    Event,
    Failed,
    Finished,
    ImageJob,
    Preview,
    Progress,
    Runtime,
    Started,
)
from tests.engines.conftest import plain_image
from tests.engines.device import DEVICE, of_a_cpu
from tests.engines.holds import hold_steps
from tests.support.harness import until
from tests.support.polling import eventually

Job = Callable[..., ImageJob]


@pytest.fixture
async def engine() -> ImageEngine:
    return ImageEngine(DEVICE)


class Log:
    """Events in order; `began` is set by the first one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.began = asyncio.Event()

    def add(self, line: str) -> None:
        self.lines.append(line)
        self.began.set()


async def run(engine: ImageEngine, job: ImageJob, log: Log | None = None) -> list[Event]:
    events = []
    async for event in engine.submit(job):
        events.append(event)
        if log is not None and isinstance(event, Progress | Finished):
            log.add(job.id if isinstance(event, Progress) else f"{job.id} done")
    return events


def pixels(events: list[Event], index: int = 0) -> Pixels:
    finished = events[-1]
    assert isinstance(finished, Finished), finished
    return np.asarray(Image.open(io.BytesIO(finished.images[index].data)))


def until_passed(engine: ImageEngine, log: Log) -> Callable[[str, int], object]:
    """When a run may go on: "long" waits after its first step for a second one that wants the device, and after 40 of
    them until "short" is done."""

    def may_go_on(name: str, step: int) -> object:
        if name != "long" or 1 < step < 40:
            return True
        return engine._scheduler._waiting if step == 1 else "short done" in log.lines

    return may_go_on


@pytest.mark.daily("sd")
@pytest.mark.parametrize("name", ["sd", "sd3", "klein"])
async def test_a_short_job_passes_a_long_one_and_both_draw_what_they_draw_alone(
    engine: ImageEngine, job: Job, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = replace(job(name).checkpoint, runtime=Runtime(batch="exact"))
    long = job(name, id="long", checkpoint=exact, steps=60)
    short = job(name, id="short", checkpoint=exact, steps=3, seed=8)
    alone = [pixels(await run(engine, one)) for one in (long, short)]
    log = Log()
    hold_steps(monkeypatch, until_passed(engine, log))
    first = asyncio.create_task(run(engine, long, log))
    await log.began.wait()
    second = await run(engine, short, log)
    assert not first.done()
    assert np.array_equal(pixels(second), alone[1])
    assert np.array_equal(pixels(await first), alone[0])
    assert log.lines.index("short done") < 50


@pytest.mark.nightly
@of_a_cpu
async def test_a_short_job_passes_a_long_one_in_the_middle_of_its_decoding(engine: ImageEngine, job: Job) -> None:
    exact = replace(job("sd").checkpoint, runtime=Runtime(batch="exact"))
    long = job("sd", id="long", checkpoint=exact, steps=60)
    short = job("sd", id="short", checkpoint=exact, steps=3, seed=8)
    scheduler, blocks, decoding = engine._scheduler, list[str](), threading.Event()
    yield_within_pass = scheduler.yield_within_pass

    def at_block(*_: object) -> None:
        turn = scheduler.current
        if turn is not None and turn.owner:
            blocks.append(turn.owner)
            if blocks == ["long"] * 3:
                turn.remaining_s = 9.0  # as if it were a tile, and more to come
                decoding.set()
                until(lambda: scheduler.contended)
        yield_within_pass()

    scheduler.yield_within_pass = at_block  # type: ignore[method-assign]
    alone = [pixels(await run(engine, one)) for one in (long, short)]
    first = asyncio.create_task(run(engine, replace(long, owner="long")))
    assert await asyncio.to_thread(decoding.wait, 240)
    second = await run(engine, replace(short, owner="short"))
    assert np.array_equal(pixels(second), alone[1])
    assert np.array_equal(pixels(await first), alone[0])
    each = blocks.count("short")
    assert each > 3
    assert blocks == ["long"] * 3 + ["short"] * each + ["long"] * (each - 3)


@pytest.mark.nightly
async def test_short_jobs_go_before_more_long_ones_than_may_start(
    engine: ImageEngine, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long ones came first and have all places, but have not begun: those that are furthest back give theirs up."""
    spec = replace(job("sd").checkpoint, runtime=Runtime(batch="exact"))
    await engine.load(spec)
    steps = [*range(60, 46, -1), *range(6, 0, -1)]
    ended: list[int] = []
    hold_steps(monkeypatch, lambda name, step: int(name) <= 6 or step < 5 or len(ended) >= 6)
    held, gate = threading.Event(), threading.Event()

    def hold() -> None:
        with engine._scheduler.acquire(DeviceTurn(0.0)):
            held.set()
            assert gate.wait(240)

    async def follow(number: int) -> None:
        assert isinstance((await run(engine, job("sd", id=str(number), checkpoint=spec, steps=number)))[-1], Finished)
        ended.append(number)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    tasks = [asyncio.create_task(follow(number)) for number in steps]
    await eventually(lambda: {1, 2} <= {run.row.job.sampling.steps for run in engine._drawing})
    assert len(engine._runs) < len(steps)
    gate.set()
    await asyncio.gather(*tasks)
    holder.join()
    assert set(ended[:6]) == {1, 2, 3, 4, 5, 6}


async def test_checkpoints_share_the_device_too(engine: ImageEngine, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    hold_steps(monkeypatch, until_passed(engine, log))
    first = asyncio.create_task(run(engine, job("sd", id="long", steps=300), log))
    await log.began.wait()
    await run(engine, job("klein", id="short", steps=2), log)
    assert not first.done()
    engine.cancel("long")
    await first


async def test_out_of_memory_is_tried_again_with_the_device_to_itself_and_then_fails(
    engine: ImageEngine, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bool] = []

    class Failing(ImagePipeline):
        def draw(self) -> Callable[[], Pixels]:
            if self.job.prompt != "large":
                return super().draw()
            tries.append(self.row.exclusive)
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("pipelines.images.drawing.run.ImagePipeline", Failing)
    ended = await asyncio.gather(run(engine, job("sd", prompt="large")), run(engine, job("sd", id="other", steps=9)))
    failed = ended[0][-1]
    assert isinstance(failed, Failed)
    assert failed.code == "out_of_memory"
    assert tries == [False, True]
    assert isinstance(ended[1][-1], Finished)


async def test_a_job_past_its_time_limit_does_not_end_another(engine: ImageEngine, job: Job) -> None:
    hasty, calm = job("sd", id="hasty", steps=60, time_limit_s=0.0), job("sd", id="calm", steps=60)
    ended = await asyncio.gather(run(engine, hasty), run(engine, calm))
    assert isinstance(ended[0][-1], Failed)
    assert ended[0][-1].code == "timed_out"
    assert "time limit of 0 s at step 1 of 60; nothing was charged. Ask for fewer steps" in ended[0][-1].message
    assert "(DARKROOM_JOB_TIME_LIMIT_S)" in ended[0][-1].message
    assert isinstance(ended[1][-1], Finished)


async def test_two_checkpoints_work_where_only_one_fits(job: Job, spec: Callable[[str], CheckpointSpec]) -> None:
    check = ImageEngine(DEVICE)
    sizes = {name: (await check.load(spec(name))).weights_bytes for name in ("sd", "klein")}
    engine = ImageEngine(DEVICE, Budgets(max(sizes.values()) + 1000, 0, 2**30))
    jobs = [job(name, id=f"{name}{i}") for i in range(3) for name in ("sd", "klein")]
    ended = await asyncio.gather(*(run(engine, one) for one in jobs))
    assert all(isinstance(events[-1], Finished) for events in ended)
    cached_checkpoints = engine._cache._loaded.values()
    assert sum(resident.bytes for resident in cached_checkpoints) <= max(sizes.values()) + 1000


@pytest.mark.nightly
async def test_a_load_is_tried_again_if_the_run_that_blocked_it_ends_while_it_fails(
    job: Job, spec: Callable[[str], CheckpointSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = ImageEngine(DEVICE)
    large = max([(await check.load(spec(name))).weights_bytes for name in ("sd", "klein")])
    engine = ImageEngine(DEVICE, Budgets(large + 1000, 0, 2**30))
    load, refused = engine._cache.load, asyncio.Event()

    async def fail_late(wanted: CheckpointSpec) -> LoadedCheckpoint:
        try:
            return await load(wanted)
        except InsufficientMemory:
            refused.set()
            await eventually(lambda: not engine._runs)
            raise

    monkeypatch.setattr(engine._cache, "load", fail_late)
    hold_steps(monkeypatch, lambda name, _: name != "first" or refused.is_set())
    log = Log()
    first = asyncio.create_task(run(engine, job("sd", id="first", steps=30), log))
    await log.began.wait()
    second = await asyncio.wait_for(run(engine, job("klein", id="second", steps=2)), 240)
    assert refused.is_set()
    assert isinstance(second[-1], Finished)
    await first


async def test_a_checkpoint_that_can_never_fit_is_refused_and_blocks_no_other_job(
    job: Job, spec: Callable[[str], CheckpointSpec]
) -> None:
    small = (await ImageEngine(DEVICE).load(spec("sd"))).weights_bytes
    engine = ImageEngine(DEVICE, Budgets(small + 1000, 0, 2**30))
    large, fits = await asyncio.gather(run(engine, job("klein", id="large")), run(engine, job("sd", id="fits")))
    assert isinstance(large[-1], Failed)
    assert "budget" in large[-1].detail
    assert isinstance(fits[-1], Finished)


def pinned(spec: CheckpointSpec, **fields: object) -> CheckpointSpec:
    return replace(spec, runtime=Runtime(resident=True), **fields)  # type: ignore[arg-type]


@pytest.mark.nightly
async def test_residents_that_do_not_fit_together_are_named_and_block_no_other_job(
    job: Job, spec: Callable[[str], CheckpointSpec]
) -> None:
    check = ImageEngine(DEVICE)
    large = max([(await check.load(spec(name))).weights_bytes for name in ("sd", "klein")])
    engine = ImageEngine(DEVICE, Budgets(large + 1000, 0, 2**30))
    first, second = pinned(spec("sd")), pinned(spec("klein"))
    assert isinstance((await run(engine, job("sd", checkpoint=first)))[-1], Finished)
    for other in (second, spec("klein")):
        failed = (await asyncio.wait_for(run(engine, job("klein", checkpoint=other)), 240))[-1]
        assert isinstance(failed, Failed)
        assert "runtime.resident keeps there: sd." in failed.detail
    with pytest.raises(CheckpointError, match=r"runtime\.resident keeps there: sd"):
        await asyncio.wait_for(engine.prepare(second), 240)
    engine.unload_except([second])  # the catalog has dropped the first
    assert isinstance((await run(engine, job("klein", checkpoint=second)))[-1], Finished)


@pytest.mark.nightly
async def test_a_pinned_checkpoint_is_swapped_for_another_that_does_not_fit_beside_it(
    job: Job, spec: Callable[[str], CheckpointSpec]
) -> None:
    old, new = pinned(spec("sd")), pinned(spec("sd"), version=1)
    size = (await ImageEngine(DEVICE).load(old)).weights_bytes
    engine = ImageEngine(DEVICE, Budgets(size + 1000, 0, 2**30))
    await engine.prepare(old)
    on_old = asyncio.create_task(run(engine, job("sd", id="on-old", checkpoint=old, steps=20)))
    await asyncio.wait_for(engine.prepare(new), 240)
    late = asyncio.create_task(run(engine, job("sd", id="late", checkpoint=old)))
    assert isinstance((await asyncio.wait_for(late, 240))[-1], Finished)
    engine.unload_except([new])
    assert isinstance((await on_old)[-1], Finished)
    assert isinstance((await run(engine, job("sd", checkpoint=new)))[-1], Finished)


async def test_weights_evicted_from_a_gpu_are_offloaded_to_the_host_on_a_thread(
    job: Job, spec: Callable[[str], CheckpointSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = ImageEngine(DEVICE)
    large = max([(await check.load(spec(name))).weights_bytes for name in ("sd", "klein")])
    engine = ImageEngine(DEVICE, Budgets(large + 1000, 0, 2**30))
    engine._cache._limits = Budgets(large + 1000, 2**40, 2**30)  # as beside a GPU
    movers = []
    move = Checkpoint.move
    monkeypatch.setattr(Checkpoint, "move", lambda *args: (movers.append(threading.current_thread().name), move(*args)))
    first = await engine._cache.load(spec("sd"))
    await engine._cache.load(spec("klein"))
    assert not first.on_device
    assert engine._cache.find(spec("sd")) is None
    assert isinstance((await run(engine, job("sd")))[-1], Finished)
    assert engine._cache.find(spec("sd")) is first
    assert {name.split("_")[0] for name in movers} == {"load"}
    assert len(movers) == 3  # sd away, klein away, sd back


@pytest.mark.nightly
async def test_others_start_when_a_job_that_blocked_them_is_cancelled(
    job: Job, spec: Callable[[str], CheckpointSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    class Slow(ImagePipeline):
        def draw(self) -> Callable[[], Pixels]:
            assert released.wait(240)
            return super().draw()

    monkeypatch.setattr("pipelines.images.drawing.run.ImagePipeline", Slow)
    monkeypatch.setattr("pipelines.images.engine.FAIR_WAIT_S", 0.0)
    check = ImageEngine(DEVICE)
    large = max([(await check.load(spec(name))).weights_bytes for name in ("sd", "klein")])
    engine = ImageEngine(DEVICE, Budgets(large + 1000, 0, 2**30))
    await engine.load(spec("sd"))
    tasks = [asyncio.create_task(run(engine, job("sd", id="runs", steps=300)))]
    await eventually(lambda: engine._runs)
    tasks.append(asyncio.create_task(run(engine, job("klein", id="has no room"))))
    await eventually(lambda: spec("klein") in engine._blocked_loads)
    tasks.append(asyncio.create_task(run(engine, job("sd", id="behind it"))))
    await eventually(lambda: "behind it" in engine._jobs)
    assert len(engine._runs) == 1
    engine.cancel("has no room")
    await eventually(lambda: len(engine._runs) == 2)
    released.set()
    ended = [events[-1] for events in await asyncio.gather(*tasks)]
    assert [type(event) for event in ended] == [Finished, Failed, Finished]


async def test_a_broken_checkpoint_blocks_no_other_job(engine: ImageEngine, job: Job, tmp_path: Path) -> None:
    broken = replace(job("sd").checkpoint, path=tmp_path / "none")
    ended = await asyncio.gather(run(engine, job("sd", id="x", checkpoint=broken)), run(engine, job("sd", id="y")))
    assert isinstance(ended[0][-1], Failed)
    assert isinstance(ended[1][-1], Finished)


@pytest.mark.daily("sd")
@pytest.mark.parametrize("name", ["sd", "sd3", "klein"])
async def test_previews_come_in_order_once_an_image_has_been_drawn(engine: ImageEngine, job: Job, name: str) -> None:
    await run(engine, job(name, steps=8))
    events = await run(engine, job(name, steps=8, n=2, previews=3, seed=9))
    previews = [event for event in events if isinstance(event, Preview)]
    assert sorted((preview.index, preview.number) for preview in previews) == [(i, k) for i in (0, 1) for k in range(3)]
    assert Image.open(io.BytesIO(previews[0].image.data)).size == (64, 64)


@pytest.mark.nightly
async def test_previews_come_in_order_and_before_the_end_however_long_they_take_to_encode(
    engine: ImageEngine, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the first one's file is ready after the image's."""
    await run(engine, job("sd", steps=8))
    first, image = threading.Event(), threading.Event()

    def encode_late(pixels: Pixels, encoding: Encoding, metadata: dict[str, str], seed: int) -> EncodedImage:
        if metadata:  # which previews have not
            image.set()
        elif not first.is_set():
            first.set()
            assert image.wait(240)
        return encode(pixels, encoding, metadata, seed)

    monkeypatch.setattr("pipelines.images.job_files.encode", encode_late)
    events = await run(engine, job("sd", id="shown", steps=8, previews=3))
    assert [event.number for event in events if isinstance(event, Preview)] == [0, 1, 2]
    assert isinstance(events[-1], Finished)


@pytest.mark.nightly
async def test_a_large_image_shows_its_canvas(engine: ImageEngine, job: Job) -> None:
    await run(engine, job("sd"))
    events = await run(engine, job("sd", width_px=208, height_px=112, steps=4, previews=2))
    assert [event.number for event in events if isinstance(event, Preview)] == [0, 1]


def test_previews_divide_the_steps_evenly(job: Job) -> None:
    with_previews = job("sd", previews=3)
    assert [due_preview(with_previews, step, 20) for step in (5, 10, 15)] == [0, 1, 2]
    assert [step for step in range(1, 5) if due_preview(with_previews, step, 4) is not None] == [1, 2, 3]


async def test_a_call_with_several_images_starts_once(engine: ImageEngine, job: Job) -> None:
    events = await run(engine, job("klein", n=2, references=(plain_image(),)))
    assert isinstance(events[-1], Finished)
    assert [type(event) for event in events].count(Started) == 1
