"""A worker that can't be spawned, and one whose job is stuck."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator

import pytest

from pipelines.protocol.classify import Classified, ClassifierSpec, ClassifyEvent, ClassifyJob
from pipelines.protocol.images import Failed
from server.backends import watchdog
from server.backends.engine_host import EngineHost, HostLimits
from tests.support.polling import eventually
from tests.support.tiny_classifiers import make_text_classifier

Host = EngineHost[ClassifyJob, ClassifyEvent]
LIMIT_S = 240  # a worker imports torch, on a busy machine


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> ClassifierSpec:
    return ClassifierSpec("blades", make_text_classifier(tmp_path_factory.mktemp("t") / "blades"), "prompts")


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    """It looks at its worker every three seconds."""
    made: Host = EngineHost("classify", [], HostLimits(8, silence_s=24.0))
    yield made
    await made.stop()


async def last(host: Host, job: ClassifyJob) -> ClassifyEvent:
    return [event async for event in host.submit(job)][-1]


async def test_a_worker_that_cannot_be_spawned_fails_its_jobs_and_is_retried(
    host: Host, texts: ClassifierSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ClassifyJob("1", texts, texts=("a boat",))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/none/python")
        descriptors = len(os.listdir("/proc/self/fd"))
        await host.start()
        failed = await asyncio.wait_for(last(host, job), LIMIT_S)
        assert isinstance(failed, Failed)
        assert failed.code == "worker_died"
        await eventually(lambda: host.restarts > 1)
        await eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    await asyncio.wait_for(host.wait_ready(), LIMIT_S)
    assert isinstance(await last(host, job), Classified)
    await eventually(lambda: host.status.memory and host.status.memory.host_bytes > 2**20)


async def test_a_worker_whose_thread_hangs_is_killed_although_it_answers(
    host: Host, texts: ClassifierSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "STUCK_GRACE_S", 0.0)
    await host.start()
    await asyncio.wait_for(host.wait_ready(), LIMIT_S)
    endless = ClassifyJob("1", texts, texts=("a boat",) * 1_000_000, time_limit_s=0.5)
    failed = await asyncio.wait_for(last(host, endless), LIMIT_S)
    assert isinstance(failed, Failed)
    assert failed.code == "worker_died"
