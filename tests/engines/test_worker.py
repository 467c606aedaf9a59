"""The worker process, at the other end of a socket pair."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pipelines.protocol.images import (
    CheckpointSpec,
    Event,
    Failed,
    Finished,
    ImageJob,
    Progress,
    Queued,
    Runtime,
    Started,
)
from pipelines.protocol.messages import (
    STILL_TRIED,
    CachedCheckpoints,
    Cancel,
    CheckpointState,
    JobEvent,
    Load,
    Ready,
    Submit,
    ToWorker,
    UnloadExcept,
    frame,
    read_frame,
)

Job = Callable[..., ImageJob]


class Worker:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "pipelines.worker", str(theirs.fileno()), "image"]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self.socket = ours
        self.reader: Any = ours.makefile("rb")
        self.received: list[Any] = []
        self.cached_checkpoints = CachedCheckpoints((), 0, 0)  # the latest

    def send(self, *messages: ToWorker) -> None:
        self.socket.sendall(frame(messages))

    def receive(self) -> Any:
        """The next message that says nothing of memory."""
        while True:
            if not self.received:
                self.received += read_frame(self.reader)
            message = self.received.pop(0) if self.received else None
            if not isinstance(message, CachedCheckpoints):
                return message
            self.cached_checkpoints = message

    def events(self, *job_ids: str) -> dict[str, list[Event]]:
        """Everything until the last of these jobs has ended."""
        seen: dict[str, list[Event]] = {job_id: [] for job_id in job_ids}
        while not all(events and isinstance(events[-1], Finished | Failed) for events in seen.values()):
            message = self.receive()
            assert isinstance(message, JobEvent), message
            seen[message.job_id].append(message.event)
        return seen

    def close(self) -> None:
        self.reader.close()
        self.socket.close()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    running = Worker()
    assert isinstance(running.receive(), Ready)
    yield running
    running.close()
    running.process.wait(timeout=60)


def test_a_job_runs_from_queued_to_finished(worker: Worker, job: Job) -> None:
    worker.send(Submit(job("sd", id="a", n=2)))
    events = worker.events("a")["a"]
    assert [type(event) for event in events[:2]] == [Queued, Started]
    assert [event.step for event in events if isinstance(event, Progress)] == [1, 2, 3, 4]
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert [image.seed for image in finished.images] == [5, 6]
    assert all(image.data.startswith(b"\x89PNG") for image in finished.images)


@pytest.mark.nightly
def test_equal_jobs_start_in_order(worker: Worker, job: Job) -> None:
    """Behind one that has the device. Which one ends first is open: images are finished by several threads."""
    exact = replace(job("sd").checkpoint, runtime=Runtime(batch="exact"))  # they do not share passes
    worker.send(Submit(job("sd", id="before", checkpoint=exact, steps=100)))
    later = {5: "a", 45: "b"}  # by the step after which they are sent: both have more to do than is left of it
    seen: list[JobEvent] = []
    while len([each for each in seen if isinstance(each.event, Finished)]) < 3:
        message = worker.receive()
        assert isinstance(message, JobEvent), message
        seen.append(message)
        if isinstance(message.event, Progress) and message.job_id == "before" and message.event.step in later:
            worker.send(Submit(job("sd", id=later[message.event.step], checkpoint=exact, steps=110)))
    assert [each.job_id for each in seen if isinstance(each.event, Started)] == ["before", "a", "b"]


def test_cancelling_ends_a_running_job_within_a_step_and_a_waiting_one_before_it_starts(
    worker: Worker, job: Job
) -> None:
    exact = replace(job("sd").checkpoint, runtime=Runtime(batch="exact"))  # they do not share passes
    runs = job("sd", id="runs", checkpoint=exact, steps=900)
    waits = replace(runs, id="waits", width_px=1024, height_px=1024)  # much more work, whatever was measured
    worker.send(Submit(runs), Submit(waits))
    while not isinstance(worker.receive().event, Progress):
        pass
    worker.send(Cancel("waits"), Cancel("runs"), Cancel("unknown"))
    events = worker.events("runs", "waits")
    assert len([event for event in events["runs"] if isinstance(event, Progress)]) < 800
    assert all(isinstance(e[-1], Failed) and e[-1].code == "cancelled" for e in events.values())
    assert not any(isinstance(event, Started) for event in events["waits"])


def test_a_job_past_its_time_limit_ends(worker: Worker, job: Job) -> None:
    worker.send(Submit(job("sd", id="a", steps=500, time_limit_s=0.0)))
    last = worker.events("a")["a"][-1]
    assert isinstance(last, Failed)
    assert last.code == "timed_out"


def test_a_bad_job_fails_alone(worker: Worker, job: Job, tmp_path: Any) -> None:
    broken = replace(job("sd").checkpoint, path=tmp_path)
    odd = replace(job("sd").checkpoint, sampling=replace(job("sd").checkpoint.sampling, scheduler="MagicScheduler"))
    worker.send(
        Submit(job("sd", id="a", checkpoint=broken)),
        Submit(job("sd", id="b", checkpoint=odd)),
        Submit(job("sd", id="c")),
    )
    events = worker.events("a", "b", "c")
    for name in "ab":
        failed = events[name][-1]
        assert isinstance(failed, Failed)
        assert failed.code == "checkpoint_failed"
        assert str(tmp_path) not in failed.message
    assert isinstance(events["c"][-1], Finished)


def test_a_bug_of_the_engine_fails_its_job_alone(worker: Worker, job: Job) -> None:
    worker.send(Submit(job("sd", id="odd", n="two")), Submit(job("sd", id="next")))
    events = worker.events("odd", "next")
    failed = events["odd"][-1]
    assert isinstance(failed, Failed)
    assert failed.code == "engine_failed"
    assert "TypeError" in failed.detail
    assert isinstance(events["next"][-1], Finished)


def test_load_reports_the_state_of_each_checkpoint(
    worker: Worker, spec: Callable[[str], CheckpointSpec], tmp_path: Any
) -> None:
    worker.send(Load((spec("sd3"), replace(spec("sd"), name="broken", path=tmp_path / "none"))))
    states = [worker.receive() for _ in range(3)]
    assert all(isinstance(state, CheckpointState) for state in states)
    assert [(state.spec.name, state.state, state.trials_left) for state in states] == [
        ("sd3", "loaded", True), ("sd3", "loaded", False), ("broken", "failed", False),
    ]  # fmt: skip
    assert [STILL_TRIED in state.detail for state in states] == [True, False, False]
    assert "no such checkpoint" in states[2].detail
    assert 0 < states[0].load_s < states[1].load_s
    resident = {each.spec.name: each for each in worker.cached_checkpoints.checkpoints}
    assert resident["sd3"].on_device
    assert "broken" not in resident
    assert 0 < resident["sd3"].bytes <= worker.cached_checkpoints.device_bytes < worker.cached_checkpoints.budget_bytes


@pytest.mark.nightly
def test_checkpoints_are_swapped_while_jobs_run_on_both(worker: Worker, job: Job) -> None:
    old = job("sd").checkpoint
    new = replace(old, version=1)
    worker.send(Submit(job("sd", id="on-old", steps=30)), Load((new,)))
    finished: list[str] = []
    while not isinstance(message := worker.receive(), CheckpointState):
        finished += [message.job_id] if isinstance(message.event, Finished) else []
    assert message.state == "loaded", message.detail
    worker.send(
        Submit(job("sd", id="late", steps=30)), UnloadExcept((new,)), Submit(job("sd", id="on-new", checkpoint=new))
    )
    while len(finished) < 3:
        if isinstance(message := worker.receive(), CheckpointState):
            continue
        assert not isinstance(message.event, Failed), message.event
        finished += [message.job_id] if isinstance(message.event, Finished) else []


def test_a_worker_whose_server_died_ends_at_once_even_while_it_draws(job: Job) -> None:
    orphan = Worker()
    assert isinstance(orphan.receive(), Ready)
    orphan.send(Submit(job("sd", steps=900, width_px=1024, height_px=1024)))  # an image of many minutes
    while not isinstance(orphan.receive().event, Progress):
        pass
    orphan.close()
    began = time.monotonic()
    orphan.process.wait(timeout=10)
    assert time.monotonic() - began < 5
