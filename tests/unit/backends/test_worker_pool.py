"""Which image worker gets a job, what the death of one costs, and that a swap happens everywhere or nowhere.

The workers are scripted: the wire ends in the test.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pipelines.checkpoints.errors import CheckpointError
from pipelines.protocol.images import CheckpointSpec, Encoding, Failed, Finished, ImageJob, Progress, Runtime, Started
from server.backends.demands import Member
from server.backends.engine_host import EngineHost, HostLimits
from server.backends.worker_checkpoints import WorkerDied
from server.backends.worker_pool import Plan, WorkerPool
from server.catalog.images import Catalog, ImageModel
from server.catalog.sizes import SizeRules
from tests.support.polling import eventually
from tests.support.scripted_worker import ScriptedWorker

SPEC = CheckpointSpec("one", Path("one"), None, "alpha", "img2img", 1, max_area_px=9_000_000)
OTHER = replace(SPEC, name="two", path=Path("two"))
NEW = replace(SPEC, name="new", path=Path("new"))
JOB = ImageJob(
    id="job", checkpoint=SPEC, prompt="a boat", sampling=SPEC.sampling.resolve(steps=100), width_px=1000,
    height_px=1000, n=1, seed=1, references=(), mask=None, encoding=Encoding(), metadata={}, time_limit_s=9,
)  # fmt: skip
LONG, DRAFT = 100, 2  # steps; a step takes half a second until one was measured


def job(name: str, steps: int = LONG, spec: CheckpointSpec = SPEC) -> ImageJob:
    return replace(JOB, id=name, checkpoint=spec, sampling=replace(JOB.sampling, steps=steps))


def catalog(**checkpoints: CheckpointSpec) -> Catalog:
    """One model for each, of the given name."""
    models = {
        name: ImageModel(
            name=name, tier="1K", price_units=1, group="g", sizes=SizeRules(name, "1K", {"1:1": (1024, 1024)}),
            checkpoint=spec, quality=None, quality_names={}, default_quality=None, steps=9, source=Path("x.toml"),
        )
        for name, spec in checkpoints.items()
    }  # fmt: skip
    return Catalog(models, {}, next(iter(models)))


@dataclass
class Running:
    worker_pool: WorkerPool
    workers: list[ScriptedWorker]


Start = Callable[..., "asyncio.Future[Running]"]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a fleet of as many scripted workers as there are sets of models (None for any)."""
    fleets: list[WorkerPool] = []

    async def begin(served: Catalog, *models: set[str] | None, wait: bool = True, **replicas: int) -> Running:
        workers = [ScriptedWorker() for _ in models]
        members = [
            Member(
                EngineHost("image", (), HostLimits(64), launcher=worker, name=f"image-{index}"),
                frozenset(named) if named is not None else None,
                worker.budget_bytes,
            )
            for index, (worker, named) in enumerate(zip(workers, models, strict=True))
        ]
        fleets.append(worker_pool := WorkerPool(members, replicas))
        worker_pool.unload_except(worker_pool.plan(served))
        await worker_pool.start()
        if wait:
            await asyncio.wait_for(worker_pool.wait_ready(), 60)
        return Running(worker_pool, workers)

    yield begin
    for worker_pool in fleets:
        await worker_pool.stop()


async def last(events: AsyncIterator[object]) -> object:
    return [event async for event in events][-1]


async def test_jobs_go_to_the_worker_with_the_least_work_left(start: Start) -> None:
    running = await start(catalog(a=SPEC), None, None)
    first, second = running.workers
    for name in "abcd":
        running.worker_pool.submit(job(name))
    assert [len(first.jobs), len(second.jobs)] == [2, 2]
    first.event(first.jobs[0], Started(), Progress(90, 100))
    await eventually(
        lambda: (
            running.worker_pool.remaining_s(running.worker_pool.hosts[0])
            < running.worker_pool.remaining_s(running.worker_pool.hosts[1])
        )
    )
    running.worker_pool.submit(job("e"))
    assert first.jobs[-1] == "e"


async def test_a_draft_beside_long_images_goes_to_the_worker_that_is_done_first(start: Start) -> None:
    running = await start(catalog(a=SPEC), None, None)
    running.worker_pool.submit(job("long"))
    running.worker_pool.submit(job("longer", 2 * LONG))
    running.worker_pool.submit(job("draft", DRAFT))
    assert running.workers[0].jobs == ["long", "draft"]


async def test_a_checkpoint_is_loaded_a_second_time_where_that_is_quicker_than_waiting(start: Start) -> None:
    running = await start(catalog(a=SPEC, b=OTHER), None, None, a=1, b=1)
    home = next(worker for worker in running.workers if SPEC in worker.loaded)
    away = next(worker for worker in running.workers if worker is not home)
    running.worker_pool.submit(job("short", 4))
    running.worker_pool.submit(job("waits", 4))  # 2 s of waiting are less than 5 s of loading
    assert home.jobs == ["short", "waits"]
    running.worker_pool.submit(job("long", 10))
    running.worker_pool.submit(job("loads", 10))  # 9 s are more
    assert home.jobs == ["short", "waits", "long"]
    assert away.jobs == ["loads"]


async def test_a_checkpoint_that_would_evict_others_must_save_twice_its_loading(start: Start) -> None:
    running = await start(catalog(a=SPEC, b=OTHER), None, None, a=1, b=1)
    home, away = sorted(running.workers, key=lambda worker: SPEC not in worker.loaded)
    host = running.worker_pool.hosts[running.workers.index(away)]
    away.budget_bytes = away.bytes
    away.report_cached()
    await eventually(lambda: (cached := host.status.cached_checkpoints) and cached.budget_bytes == cached.device_bytes)
    running.worker_pool.current = replace(
        running.worker_pool.current, bytes=dict.fromkeys(running.worker_pool.current.bytes, 1000)
    )
    running.worker_pool.submit(job("first", 16))
    running.worker_pool.submit(job("second", 16))  # 8 s of waiting: more than a load, less than two
    assert home.jobs == ["first", "second"]


async def test_a_worker_draws_only_the_models_that_it_is_given(start: Start) -> None:
    running = await start(catalog(a=SPEC, b=OTHER), {"a"}, {"b"})
    assert [worker.loaded for worker in running.workers] == [[SPEC], [OTHER]]
    for name in "cde":
        running.worker_pool.submit(job(name))
    assert running.workers[1].jobs == []


async def test_the_death_of_a_worker_fails_its_jobs_and_no_others(start: Start) -> None:
    running = await start(catalog(a=SPEC), None, None)
    dying, living = running.workers
    ends = [asyncio.create_task(last(running.worker_pool.submit(job(name)))) for name in "ab"]
    dying.starts.clear()
    dying.kill()
    failed = await asyncio.wait_for(ends[0], 60)
    assert isinstance(failed, Failed)
    assert failed.code == "worker_died"
    assert running.worker_pool.ready
    for name in "cd":
        running.worker_pool.submit(job(name))
    assert living.jobs == ["b", "c", "d"]
    living.event("b", Finished((), run_s=1.0, unit_s=0.5))
    assert isinstance(await asyncio.wait_for(ends[1], 60), Finished)
    dying.starts.set()
    await eventually(lambda: dying.loaded == [SPEC])  # it comes back by itself, with its checkpoint
    await eventually(lambda: all(host.ready for host in running.worker_pool.hosts))
    running.worker_pool.submit(job("e"))
    assert dying.jobs[-1] == "e"


async def test_a_worker_that_never_starts_does_not_keep_the_others_from_serving(start: Start) -> None:
    running = await start(catalog(a=SPEC), None, None, wait=False)
    assert not running.worker_pool.ready  # both are in their first start
    await eventually(lambda: running.worker_pool.ready)
    running.workers[1].starts.clear()
    running.workers[1].kill()
    await eventually(lambda: len(running.worker_pool.alive) == 1)
    assert running.worker_pool.ready
    running.workers[0].starts.clear()
    running.workers[0].kill()
    await eventually(lambda: not running.worker_pool.ready)


async def test_a_new_checkpoint_is_loaded_by_every_worker_before_any_serves_it(start: Start) -> None:
    running = await start(catalog(a=SPEC), None, None)
    plan = running.worker_pool.plan(catalog(a=NEW))
    running.workers[1].loads.clear()
    swap = asyncio.create_task(running.worker_pool.prepare([NEW], plan))
    await eventually(lambda: NEW in running.workers[0].loaded)
    assert not swap.done()
    running.workers[1].loads.set()
    await asyncio.wait_for(swap, 60)
    running.worker_pool.unload_except(plan)
    assert [worker.loaded for worker in running.workers] == [[NEW], [NEW]]


async def test_if_one_worker_cannot_load_it_none_changes(start: Start) -> None:
    running = await start(catalog(a=SPEC), None, None)
    before = running.worker_pool.current
    running.workers[1].failing.add("new")
    with pytest.raises(CheckpointError, match="new does not load"):
        await running.worker_pool.prepare([NEW], running.worker_pool.plan(catalog(a=NEW)))
    running.worker_pool.unload_except(before)
    assert [worker.loaded for worker in running.workers] == [[SPEC], [SPEC]]


async def test_if_one_worker_dies_meanwhile_none_changes(start: Start) -> None:
    running = await start(catalog(a=SPEC), None, None)
    plan = running.worker_pool.plan(catalog(a=NEW))
    running.workers[1].loads.clear()
    swap = asyncio.create_task(running.worker_pool.prepare([NEW], plan))
    await eventually(lambda: NEW in running.workers[0].loaded)
    running.workers[0].kill()  # after its own part is done
    await eventually(lambda: running.worker_pool.hosts[0].restarts == 1)
    running.workers[1].loads.set()
    with pytest.raises(WorkerDied):
        await asyncio.wait_for(swap, 60)


async def test_a_worker_that_is_down_during_a_swap_comes_up_with_the_new_checkpoint(start: Start) -> None:
    running = await start(catalog(a=SPEC), None, None)
    running.workers[1].starts.clear()
    running.workers[1].kill()
    await eventually(lambda: len(running.worker_pool.alive) == 1)
    plan = running.worker_pool.plan(catalog(a=NEW))
    await asyncio.wait_for(running.worker_pool.prepare([NEW], plan), 60)
    running.worker_pool.unload_except(plan)
    running.workers[1].starts.set()
    await eventually(lambda: all(host.ready for host in running.worker_pool.hosts))
    running.worker_pool.submit(job("a", spec=NEW))
    running.worker_pool.submit(job("b", spec=NEW))
    assert [worker.jobs for worker in running.workers] == [["a"], ["b"]]


async def test_a_checkpoint_that_no_worker_may_draw_is_refused(start: Start) -> None:
    running = await start(catalog(a=SPEC), {"a"}, {"a"})
    with pytest.raises(CheckpointError, match="DARKROOM_ENGINES says which models"):
        running.worker_pool.plan(catalog(a=SPEC, b=OTHER))
    assert running.worker_pool.current != Plan()


async def test_workers_that_come_are_used_and_those_that_go_end(start: Start) -> None:
    served = catalog(a=SPEC)
    running = await start(served, None, None)
    came = ScriptedWorker()
    new = Member(EngineHost("image", (), HostLimits(64), launcher=came, name="image-new"), None, came.budget_bytes)
    kept = Member(EngineHost("image", (), HostLimits(64), name="image-0"))  # by its name: it stays as it is
    running.worker_pool.submit(job("a"))
    lost = running.worker_pool.submit(job("b"))
    await running.worker_pool.change_members([kept, new], served)
    assert isinstance(await last(lost), Failed)
    await eventually(lambda: len(running.worker_pool.alive) == 2)
    assert running.worker_pool.current.placement == {"image-0": (SPEC,), "image-new": (SPEC,)}
    running.worker_pool.submit(job("c"))
    assert (running.workers[0].jobs, came.jobs) == (["a"], ["c"])
    only_other = Member(EngineHost("image", (), HostLimits(64), name="image-9"), frozenset({"b"}))
    with pytest.raises(CheckpointError, match="none of the image workers"):
        await running.worker_pool.change_members([only_other], served)
    assert [host.name for host in running.worker_pool.workers] == ["image-0", "image-new"]


def test_checkpoints_are_loaded_by_the_workers_with_the_fewest_devices_that_are_enough() -> None:
    pair, four = (replace(OTHER, name=f"{n}", runtime=Runtime(gpus=n)) for n in (2, 4))
    members = [
        Member(EngineHost("image", (), HostLimits(64), name=f"of-{count}"), room_bytes=2**30, devices=count)
        for count in (1, 2)
    ]
    placed = WorkerPool(members).plan(catalog(one=SPEC, pair=pair)).placement
    assert placed == {"of-1": (SPEC,), "of-2": (pair,)}
    assert WorkerPool(members[1:]).plan(catalog(one=SPEC)).placement == {"of-2": (SPEC,)}
    too_few = WorkerPool(members).plan(catalog(four=four)).placement  # loading says that it takes more
    assert {spec for specs in too_few.values() for spec in specs} == {four}
