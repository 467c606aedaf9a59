"""What becomes of jobs and of the next worker when one ends at any moment of its life. The workers are processes, which
draw nothing (benchmarks/echo_worker.py)."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.protocol.images import CheckpointSpec, Encoding, Event, Failed, Finished, ImageJob, Started
from server.backends import child_process
from server.backends.engine_host import EngineHost, HostLimits
from tests.support import ending_worker
from tests.support.polling import eventually

pytestmark = pytest.mark.slow
Host = EngineHost[ImageJob, Event]
SPEC = CheckpointSpec("one", Path("one"), None, "alpha", "img2img", 1, max_area_px=9_000_000)
OTHER = replace(SPEC, name="two", path=Path("two"))
JOB = ImageJob(
    id="job", checkpoint=SPEC, prompt="9", sampling=SPEC.sampling.resolve(steps=2), width_px=64, height_px=64,
    n=1, seed=1, references=(), mask=None, encoding=Encoding(), metadata={}, time_limit_s=60,
)  # fmt: skip
ENDLESS = replace(JOB, id="endless", sampling=SPEC.sampling.resolve(steps=10**9))


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    monkeypatch.setattr(child_process, "WORKER", "benchmarks.echo_worker")
    made = Host("image", (SPEC, OTHER), HostLimits(8, silence_s=60.0))
    await made.start()
    yield made
    await made.stop()


async def spawned(host: Host) -> int:
    """Return the process id of a worker that has just been spawned."""
    await eventually(lambda: host.status.pid is not None)
    assert host.status.pid is not None
    return host.status.pid


async def last(events: AsyncIterator[Event]) -> Event:
    return [event async for event in events][-1]


async def assert_draws(host: Host) -> None:
    assert isinstance(await last(host.submit(JOB)), Finished)


def assert_died(event: Event) -> None:
    assert isinstance(event, Failed)
    assert event.code == "worker_died"
    assert event.message == (
        "The image worker died while it was processing this job; nothing was charged. Please send the request again."
    )


async def test_one_that_is_killed_while_it_starts_fails_its_jobs_and_the_next_one_draws(host: Host) -> None:
    pid = await spawned(host)
    assert host.status.device is None
    assert not host.status.takes_jobs
    events = host.submit(JOB)
    os.kill(pid, signal.SIGKILL)
    assert_died(await last(events))
    assert (host.status.pid, host.restarts, host.status.problem) == (None, 1, "SIGKILL")
    await assert_draws(host)
    assert (host.status.device, host.status.problem) == ("no device", None)


async def test_one_that_is_killed_at_work_costs_its_jobs_and_what_it_had_loaded(host: Host) -> None:
    await host.wait_ready()
    assert host.checkpoints.keys() == {SPEC, OTHER}
    events = host.submit(ENDLESS)
    async for event in events:
        if isinstance(event, Started) and host.status.pid is not None:
            os.kill(host.status.pid, signal.SIGKILL)
    assert (host.jobs, host.checkpoints, host.status.device, host.status.memory) == (0, {}, None, None)
    await assert_draws(host)
    await eventually(lambda: host.ready)
    assert host.restarts == 1


async def test_one_that_no_longer_answers_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "WORKER", "benchmarks.echo_worker")
    host = Host("image", (), HostLimits(8, silence_s=1.0))

    def hangs_and_is_told() -> bool:
        if host.ready and host.status.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has been killed just now
                os.kill(host.status.pid, signal.SIGSTOP)
        return host.status.problem == "it was killed: it does not answer"

    await host.start()
    try:
        await host.wait_ready()
        os.kill(await spawned(host), signal.SIGSTOP)
        assert_died(await last(host.submit(ENDLESS)))
    finally:
        await host.stop()


async def test_one_that_is_killed_in_its_sleep_stays_away_until_a_job_comes(host: Host) -> None:
    await host.wait_ready()
    pid = await spawned(host)
    await host.sleep("host")
    assert (host.status.place, host.status.pid) == ("host", pid)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: host.status.place == "disk")
    assert (host.status.pid, host.restarts, host.ready, host.status.problem) == (None, 0, True, None)
    await assert_draws(host)


async def test_one_that_is_killed_while_it_wakes_fails_its_jobs_and_the_next_one_loads_all(host: Host) -> None:
    await host.wait_ready()
    await host.sleep()
    events = host.submit(JOB)
    assert host.status.sleep == "waking"
    os.kill(await spawned(host), signal.SIGKILL)
    assert_died(await last(events))
    assert (host.status.sleep, host.restarts, host.status.takes_jobs) == ("awake", 1, False)
    await eventually(lambda: host.ready)
    assert host.checkpoints.keys() == {SPEC, OTHER}


async def test_calls_that_wake_it_at_once_share_one_process(host: Host) -> None:
    await host.wait_ready()
    await host.sleep()
    jobs = [host.submit(replace(JOB, id=name, checkpoint=spec)) for name, spec in (("a", SPEC), ("b", OTHER))]
    host.wake()
    pid = await spawned(host)
    assert all(isinstance(each, Finished) for each in await asyncio.gather(*map(last, jobs)))
    await eventually(lambda: host.status.sleep == "awake")
    assert (host.status.pid, host.wake_s(SPEC), host.wake_s(OTHER)) == (pid, 0, 0)


async def test_a_stop_while_it_starts_leaves_no_process_and_fails_its_jobs(host: Host) -> None:
    pid = await spawned(host)
    events = host.submit(JOB)
    await host.stop()
    assert_died(await last(events))
    assert (host.status.pid, host.restarts) == (None, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_stop_at_work_and_one_in_sleep_leave_no_process(host: Host) -> None:
    await host.wait_ready()
    pid = await spawned(host)
    events = host.submit(ENDLESS)
    await host.stop()
    assert_died(await last(events))
    await host.start()
    await eventually(lambda: host.ready)
    await host.sleep()
    await host.stop()
    assert host.status.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("ending", "problem"),
    [
        ("no device", ending_worker.NO_GPU),
        ("library", f"The worker has failed: ImportError: {ending_worker.LIBRARY}"),
        ("lost", ending_worker.LOST),
        ("silent", "it ended with status 3, and said no reason but on the server's stderr"),
    ],
)
async def test_the_reason_of_a_worker_that_ends_is_its_own(
    ending: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "WORKER", "tests.support.ending_worker")
    monkeypatch.setenv("ENDING", ending)
    host = Host("image", (), HostLimits(8, silence_s=60.0))
    await host.start()
    try:
        await eventually(lambda: host.status.problem == problem)
        assert host.status.device is None
    finally:
        await host.stop()


async def test_a_problem_of_the_machine_is_told_while_the_worker_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "WORKER", "tests.support.ending_worker")
    monkeypatch.setenv("ENDING", "never")
    host = Host("image", (), HostLimits(8, silence_s=60.0))
    await host.start()
    try:
        await assert_draws(host)
        assert (host.status.device, host.status.problem) == ("a device", " ".join(ending_worker.PROBLEMS))
    finally:
        await host.stop()


async def test_a_worker_that_the_kernel_ends_for_its_memory_says_so(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = await spawned(host)
    monkeypatch.setattr(child_process, "_kills_for_memory", lambda: 2**40)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: "for want of the host's memory" in (host.status.problem or ""))


async def test_a_worker_that_is_killed_since_it_hangs_says_that_it_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_process, "WORKER", "benchmarks.echo_worker")
    host = Host("image", (), HostLimits(8, silence_s=1.0))

    def hangs_and_is_told() -> bool:
        if host.ready and host.status.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has been killed just now
                os.kill(host.status.pid, signal.SIGSTOP)
        return host.status.problem == "it was killed: it does not answer"

    await host.start()
    try:
        await eventually(hangs_and_is_told)
    finally:
        await host.stop()
