"""A host whose checkpoint does not load: its jobs are refused at once, until another try may go better."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipelines.protocol.chat import ChatEvent, ChatJob, ChatSpec, CountFinished, CountJob
from pipelines.protocol.images import Failed
from pipelines.protocol.messages import CheckpointState, GpuMemory, Spec, Submit, ToWorker
from server.backends import failed_loads, worker_life
from server.backends.engine_host import EngineHost, HostLimits
from server.backends.failed_loads import FailedLoads
from server.backends.job_events import JobEvents
from tests.support.polling import eventually
from tests.support.scripted_worker import ScriptedWorker

Host = EngineHost[ChatJob | CountJob, ChatEvent]
FAILED = Failed("checkpoint_failed", "it can't be used", "no weights\nTraceback", movable="anywhere")


class ChatWorker(ScriptedWorker):
    """Counts tokens at once, unless the checkpoint is broken."""

    broken = False
    deadly = False

    def send(self, messages: list[ToWorker]) -> None:  # type: ignore[override]
        super().send(messages)
        for message in messages:
            if isinstance(message, Submit):
                if self.deadly:
                    self.kill()
                    return
                self.event(message.job.id, FAILED if self.broken else CountFinished(7))


@pytest.fixture
def spec(tmp_path: Path) -> ChatSpec:
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat/config.json").write_text("{}")
    return ChatSpec("chat", tmp_path / "chat")


@pytest.fixture
async def worker(spec: ChatSpec) -> AsyncIterator[tuple[Host, ChatWorker]]:
    scripted = ChatWorker()
    host = Host("chat", (), HostLimits(4), "cpu", scripted)
    host.unload_except([spec])
    await host.start()
    await asyncio.wait_for(host.wait_ready(), 60)
    yield host, scripted
    await host.stop()


async def count(host: Host, name: str, spec: ChatSpec) -> ChatEvent:
    return await asyncio.wait_for(last(host.submit(CountJob(name, spec, ()))), 60)


async def last(events: JobEvents[ChatEvent]) -> ChatEvent:
    return [event async for event in events][-1]


async def test_a_chat_model_that_does_not_load_is_refused_until_its_files_change(
    worker: tuple[Host, ChatWorker], spec: ChatSpec
) -> None:
    host, scripted = worker
    scripted.broken = True
    assert await count(host, "a", spec) == FAILED
    refused = await count(host, "b", spec)
    assert isinstance(refused, Failed)
    assert "loading it has failed. The server's log says why; it is tried again in 30 s" in refused.message
    assert scripted.jobs == ["a"]
    scripted.broken = False
    assert isinstance(await count(host, "c", spec), Failed), "nothing says that it would load now"
    (spec.path / "model.safetensors").write_bytes(b"x")
    assert await count(host, "d", spec) == CountFinished(7)
    assert scripted.jobs == ["a", "d"]


async def test_a_chat_model_that_ends_its_worker_ends_two(
    worker: tuple[Host, ChatWorker], spec: ChatSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_life, "MAX_PAUSE_S", 0.0)
    host, scripted = worker
    scripted.deadly = True
    codes = list[str]()
    for name in "abcd":
        failed = await count(host, name, spec)
        assert isinstance(failed, Failed)
        codes.append(failed.code)
        await eventually(lambda: host.status.takes_jobs)
    assert codes == ["worker_died"] * 2 + ["checkpoint_failed"] * 2
    assert scripted.lives == 3
    assert "workers end while they load it" in failed.message
    scripted.deadly = False
    assert await count(host, "e", ChatSpec("other", spec.path)) == CountFinished(7)
    host.unload_except([spec])
    assert await count(host, "f", spec) == CountFinished(7)


async def test_a_full_queue_behind_mended_files_is_told_as_such(
    worker: tuple[Host, ChatWorker], spec: ChatSpec
) -> None:
    host, scripted = worker
    scripted.broken = True
    await count(host, "a", spec)
    await count(host, "a while later, when the files are known", spec)
    refused = host.submit(CountJob("b", spec, ()))
    (spec.path / "config.json").write_text("{ }")
    scripted.send = lambda _: None  # type: ignore[assignment]
    other = ChatSpec("other", spec.path)
    for name in "cdef":
        host.submit(CountJob(name, other, ()))
    full = await asyncio.wait_for(last(refused), 60)
    assert isinstance(full, Failed)
    assert (full.code, (full.retry_after_s or 0) > 0) == ("queue_full", True)


async def test_a_checkpoint_that_waits_for_memory_is_not_refused(
    worker: tuple[Host, ChatWorker], spec: ChatSpec
) -> None:
    host, scripted = worker
    scripted._inbox.put_nowait(CheckpointState(spec, "failed", "others have it", waits_for_memory=True))
    await eventually(lambda: spec in host.checkpoints)
    assert host.failures.at(spec) is not None
    assert await count(host, "a", spec) == CountFinished(7)


async def test_a_disk_that_does_not_answer_holds_one_thread_and_no_job(
    worker: tuple[Host, ChatWorker], spec: ChatSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, scripted = worker
    scripted.broken = True
    await count(host, "a", spec)
    asked, answers = 0, asyncio.Event()

    async def hang(_: Spec) -> str:
        nonlocal asked
        asked += 1
        await answers.wait()
        return "other files"

    monkeypatch.setattr(failed_loads, "_version", hang)
    monkeypatch.setattr(failed_loads, "LOOK_S", 0.0)
    for name in "bc":
        refused = await count(host, name, spec)
        assert isinstance(refused, Failed)
    await eventually(lambda: asked == 1)
    assert isinstance(await count(host, "d", spec), Failed)
    assert asked == 1
    scripted.broken = False
    answers.set()
    await eventually(lambda: not host.failures.refuses(spec))
    assert await count(host, "e", spec) == CountFinished(7)


async def test_an_end_of_a_worker_by_chance_is_none_in_a_row_after_another_failure(spec: ChatSpec) -> None:
    failures = FailedLoads()
    for ends_worker, refuses in ((True, False), (False, True), (True, False), (True, True), (False, True)):
        failures.remember(spec, ends_worker=ends_worker)
        assert failures.refuses(spec) is refuses
    assert failures.ended_workers(spec)
    failures.note_memory(GpuMemory(1000, 100, 0, 0, 0))
    failures.note_memory(GpuMemory(1000, 900, 0, 0, 0))
    assert not failures.refuses(spec)
