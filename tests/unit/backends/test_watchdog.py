"""Which jobs of a worker should have made progress by now: a chat that is never admitted must not wait for ever."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.protocol.chat import Admitted, ChatJob, ChatSpec, CountJob, TextDelta
from pipelines.protocol.classify import ClassifierSpec, ClassifyJob
from pipelines.protocol.images import Queued, Started
from server.backends.job_events import PendingJob
from server.backends.watchdog import STUCK_GRACE_S, Watchdog

LIMIT_S = 10.0
SILENCE_S = 1000.0
SPEC = ChatSpec("chat", Path("chat"))
TEXTS = ClassifierSpec("classifier", Path("classifier"), "prompts")


def chat(number: int = 0) -> PendingJob:
    return PendingJob(ChatJob(str(number), SPEC, (), seed=0, time_limit_s=LIMIT_S), acknowledged=True)


def watchdog(*jobs: PendingJob, loaded: bool = True) -> Watchdog:
    made = Watchdog(SILENCE_S, {job.job.id: job for job in jobs}, lambda: True, lambda _: loaded)
    made.last_message_at = 100.0
    return made


@pytest.mark.parametrize("job", [chat().job, CountJob("count", SPEC, (), time_limit_s=LIMIT_S)])
def test_a_chat_that_was_never_admitted_is_stuck_after_its_time(job: Any) -> None:
    waiting = PendingJob(job, acknowledged=True)
    late = LIMIT_S + STUCK_GRACE_S + 1
    assert watchdog(waiting)._why_stuck(late) == "a job makes no progress"
    assert watchdog(waiting)._why_stuck(late - 1) is None
    assert watchdog(waiting, loaded=False)._why_stuck(late) is None  # it waits for the checkpoint


def test_a_job_that_the_worker_has_not_seen_or_that_waits_for_the_device_is_not_due() -> None:
    classified = PendingJob(ClassifyJob("texts", TEXTS, time_limit_s=LIMIT_S), acknowledged=True)
    unseen = PendingJob(chat().job)
    late = LIMIT_S + STUCK_GRACE_S + 1
    assert watchdog(classified, unseen)._why_stuck(late) is None
    classified.started = True
    assert watchdog(classified, unseen)._why_stuck(late) == "a job makes no progress"


def test_a_chat_that_waits_for_its_turn_may_take_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.backends.job_events.time", SimpleNamespace(monotonic=lambda: 0.0))
    waiting, late = chat(), LIMIT_S + STUCK_GRACE_S + 1
    for event, stuck in (
        (Queued(), "a job makes no progress"),  # its prompt is made
        (Admitted(1), None),
        (Started(), "a job makes no progress"),
        (TextDelta(0, "a"), "a job makes no progress"),
        (Queued(), None),  # others have its place
        (TextDelta(0, "b"), "a job makes no progress"),
    ):
        waiting.record(event)
        assert watchdog(waiting)._why_stuck(late) == stuck, event


def test_a_job_that_moves_on_brings_those_behind_it_nearer_and_no_other() -> None:
    jobs = [chat(number) for number in range(4)]
    jobs[2].started = True
    watching = watchdog(*jobs)
    jobs[1].last_event_at = 50.0
    watching.record_event(jobs[1], Queued())
    assert [job.last_event_at for job in jobs] == [0.0, 50.0, 0.0, 0.0]
    watching.record_event(jobs[1], Admitted(1))
    assert [job.last_event_at for job in jobs] == [0.0, 50.0, 0.0, 50.0]


def test_a_load_begins_the_time_of_what_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.backends.watchdog.time", SimpleNamespace(monotonic=lambda: 70.0))
    waiting, other = chat(1), PendingJob(ClassifyJob("texts", TEXTS, time_limit_s=LIMIT_S))
    watchdog(waiting, other).record_loaded(SPEC)
    assert (waiting.last_event_at, other.last_event_at) == (70.0, 0.0)
