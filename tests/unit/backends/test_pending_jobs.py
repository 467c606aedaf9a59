"""Which jobs of a worker should have made progress by now: a chat that is never admitted must not wait for ever."""

from pathlib import Path

import pytest

from pipelines.protocol.chat import ChatJob, ChatSpec, CountJob
from pipelines.protocol.classify import ClassifierSpec, ClassifyJob
from pipelines.protocol.messages import Job
from server.backends.pending_jobs import STUCK_GRACE_S, PendingJob, bring_nearer, due_jobs

LIMIT_S = 10.0
SPEC = ChatSpec("chat", Path("chat"))
CLASSIFIER = ClassifierSpec("classifier", Path("classifier"), "prompts")


def chat(number: int) -> PendingJob:
    return PendingJob(ChatJob(str(number), SPEC, (), seed=0, time_limit_s=LIMIT_S), acknowledged=True)


@pytest.mark.parametrize("job", [chat(0).job, CountJob("count", SPEC, (), time_limit_s=LIMIT_S)])
def test_a_chat_is_due_when_its_checkpoint_is_loaded(job: Job) -> None:
    waiting = PendingJob(job, acknowledged=True)
    assert due_jobs([waiting], set()) == []
    assert due_jobs([waiting], {SPEC}) == [waiting]
    assert not waiting.is_stuck(LIMIT_S + STUCK_GRACE_S)
    assert waiting.is_stuck(LIMIT_S + STUCK_GRACE_S + 1)


def test_a_job_that_the_worker_has_not_seen_or_that_waits_for_the_device_is_not_due() -> None:
    classified = PendingJob(ClassifyJob("texts", CLASSIFIER, time_limit_s=LIMIT_S), acknowledged=True)
    unseen = PendingJob(chat(0).job)
    specs = {classified.job.checkpoint, SPEC}
    assert due_jobs([classified, unseen], specs) == []
    classified.started = True
    assert due_jobs([classified, unseen], set()) == [classified]


def test_a_job_that_moves_on_brings_those_behind_it_nearer_and_no_other() -> None:
    jobs = {str(number): chat(number) for number in range(4)}
    jobs["2"].started = True
    jobs["1"].last_event_at = 50.0
    bring_nearer(jobs, "1")
    assert [job.last_event_at for job in jobs.values()] == [0.0, 50.0, 0.0, 50.0]
