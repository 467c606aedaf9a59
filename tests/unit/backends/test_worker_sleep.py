"""When a worker sleeps, what wakes it, and what each loads. The workers are scripted: the wire ends in the test."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.protocol.images import CheckpointSpec, Encoding, Event, Failed, Finished, ImageJob, Started
from server.backends.engine_host import FIRST_START_S, EngineHost, HostLimits
from tests.support.polling import eventually
from tests.support.scripted_worker import LOAD_S, ScriptedWorker

Host = EngineHost[ImageJob, Event]
SPEC = CheckpointSpec("one", Path("one"), None, "alpha", "img2img", 1, max_area_px=9_000_000)
OTHER = replace(SPEC, name="two", path=Path("two"))
JOB = ImageJob(
    id="job", checkpoint=SPEC, prompt="a boat", sampling=SPEC.sampling.resolve(steps=4), width_px=64, height_px=64,
    n=1, seed=1, references=(), mask=None, encoding=Encoding(), metadata={}, time_limit_s=9,
)  # fmt: skip
DONE = Finished((), 1.0, 0.1)


@pytest.fixture
def worker() -> ScriptedWorker:
    return ScriptedWorker()


@pytest.fixture
async def host(worker: ScriptedWorker) -> AsyncIterator[Host]:
    made = Host("image", (SPEC, OTHER), HostLimits(8), launcher=worker)
    await made.start()
    await made.wait_ready()
    yield made
    await made.stop()


async def last(events: AsyncIterator[Event]) -> Event:
    return [event async for event in events][-1]


async def finish(worker: ScriptedWorker, job_id: str = "job") -> None:
    await eventually(lambda: job_id in worker.jobs)
    worker.event(job_id, Started(), DONE)


async def test_asleep_it_is_ready_and_knows_its_checkpoints(host: Host, worker: ScriptedWorker) -> None:
    await host.sleep()
    assert (host.status.sleep, host.status.place, host.status.pid) == ("asleep", "disk", None)
    assert host.ready
    assert host.status.takes_jobs
    assert host.status.cached_checkpoints is None
    assert host.checkpoints.keys() == {SPEC, OTHER}
    assert host.restarts == 0
    assert host.wake_s(SPEC) >= LOAD_S


async def test_a_job_wakes_it_and_loads_its_own_checkpoint_alone(host: Host, worker: ScriptedWorker) -> None:
    assert host.wake_s(SPEC) == 0
    await host.sleep()
    events = host.submit(JOB)
    assert LOAD_S <= events.wake_s <= LOAD_S + FIRST_START_S
    assert host.status.sleep == "waking"
    await finish(worker)
    assert isinstance(await last(events), Finished)
    assert worker.loaded == [SPEC]
    assert worker.lives == 2
    await eventually(lambda: host.status.sleep == "awake")
    assert host.wake_s(SPEC) == 0
    assert host.wake_s(OTHER) == LOAD_S  # the process is up
    assert host.submit(replace(JOB, id="again")).wake_s == 0
    assert host.submit(replace(JOB, id="other", checkpoint=OTHER)).wake_s == LOAD_S
    await eventually(lambda: worker.loaded == [SPEC, OTHER])


async def test_it_sleeps_after_its_jobs_and_a_wake_takes_that_back(host: Host, worker: ScriptedWorker) -> None:
    events = host.submit(JOB)
    await host.sleep()
    assert (host.status.sleep, host.sleep_wanted) == ("awake", "disk")
    host.wake()
    assert host.sleep_wanted is None
    await host.sleep()
    await finish(worker)
    assert isinstance(await last(events), Finished)
    await eventually(lambda: host.status.sleep == "asleep")
    host.wake()
    await eventually(lambda: worker.loaded == [SPEC, OTHER] and host.status.sleep == "awake")


async def test_a_job_that_comes_while_the_process_ends_waits_for_the_next_one(
    host: Host, worker: ScriptedWorker
) -> None:
    sleeping = asyncio.create_task(host.sleep())
    await asyncio.sleep(0)  # it was told to end
    events = host.submit(JOB)
    await finish(worker)
    assert isinstance(await last(events), Finished)
    await sleeping
    assert worker.lives == 2


async def test_a_checkpoint_is_prepared_while_it_sleeps(host: Host, worker: ScriptedWorker) -> None:
    await host.sleep()
    new = replace(SPEC, name="new", path=Path("new"))
    await host.prepare(new)
    assert worker.loaded == [new]
    assert host.status.sleep == "awake"


async def test_what_is_asked_while_the_next_process_is_spawned_is_loaded_too(
    host: Host, worker: ScriptedWorker
) -> None:
    await host.sleep()
    worker.starts.clear()
    events = host.submit(JOB)
    await eventually(lambda: worker.asked == 2)
    host.wake()
    new = replace(SPEC, name="new", path=Path("new"))
    prepared = asyncio.create_task(host.prepare(new))
    await asyncio.sleep(0)
    worker.starts.set()
    await finish(worker)
    assert isinstance(await last(events), Finished)
    await prepared
    assert worker.loaded == [SPEC, OTHER, new]


async def test_another_catalog_counts_for_a_worker_that_is_being_spawned(worker: ScriptedWorker) -> None:
    host = Host("image", (SPEC,), HostLimits(8), launcher=worker)
    worker.starts.clear()
    await host.start()
    try:
        await eventually(lambda: worker.asked == 1)
        host.unload_except((OTHER,), (OTHER,))
        worker.starts.set()
        await host.wait_ready()
        assert worker.loaded == [OTHER]
    finally:
        await host.stop()


async def test_on_the_host_its_process_stays_and_a_job_is_quicker(host: Host, worker: ScriptedWorker) -> None:
    await host.sleep("host")
    assert (host.status.place, worker.moved, worker.lives) == ("host", 1, 1)
    assert 0 < host.wake_s(SPEC) < LOAD_S
    events = host.submit(JOB)
    await finish(worker)
    assert isinstance(await last(events), Finished)
    assert worker.lives == 1
    await host.sleep("host")
    await host.sleep("disk")
    assert host.status.place == "disk"
    await host.sleep("host")
    assert host.status.place == "disk"


async def test_a_worker_that_dies_asleep_stays_away_until_it_is_needed(host: Host, worker: ScriptedWorker) -> None:
    await host.sleep("host")
    worker.kill()
    await eventually(lambda: host.status.place == "disk")
    assert (worker.lives, host.restarts) == (1, 0)
    events = host.submit(JOB)
    await finish(worker)
    assert isinstance(await last(events), Finished)


async def test_a_cancelled_job_lets_it_sleep_again(host: Host, worker: ScriptedWorker) -> None:
    await host.sleep()
    events = host.submit(JOB)
    host.cancel("job")
    assert isinstance(await last(events), Failed)
    await eventually(lambda: host.status.sleep == "awake")
    await host.sleep()
    assert host.status.sleep == "asleep"


async def test_stopping_fails_the_jobs_of_a_worker_that_wakes(host: Host, worker: ScriptedWorker) -> None:
    await host.sleep()
    worker.starts.clear()
    events = host.submit(JOB)
    await host.stop()
    failed = await last(events)
    assert isinstance(failed, Failed)
    assert failed.code == "worker_died"


async def test_it_sleeps_by_itself_when_nothing_was_asked_of_it(worker: ScriptedWorker) -> None:
    host = Host("image", (SPEC,), HostLimits(8, idle_unload_s=0.01), launcher=worker)
    await host.start()
    try:
        await eventually(lambda: host.status.sleep == "asleep")
        events = host.submit(JOB)
        await finish(worker)
        assert isinstance(await last(events), Finished)
        await eventually(lambda: host.status.sleep == "asleep")
        assert worker.lives == 2
    finally:
        await host.stop()


async def test_the_engine_of_a_cluster_does_not_sleep(worker: ScriptedWorker) -> None:
    worker.owns_worker = False
    host = Host("image", (SPEC,), HostLimits(8, idle_unload_s=0.01), launcher=worker)
    await host.start()
    try:
        await host.wait_ready()
        assert not host.can_sleep
        await host.sleep()
        assert host.status.sleep == "awake"
    finally:
        await host.stop()
