"""The engine by itself: cancelled jobs, callers that leave, and errors."""

import asyncio
import threading
from collections.abc import Callable

import pytest
import torch

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.drawing import run
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.engine import ImageEngine
from pipelines.images.loading import checkpoint_cache
from pipelines.protocol.images import Event, Failed, Finished, ImageJob, Progress
from tests.engines.conftest import plain_image
from tests.engines.device import DEVICE
from tests.engines.holds import hold_steps
from tests.support.polling import eventually

Job = Callable[..., ImageJob]


@pytest.fixture
async def engine() -> ImageEngine:
    return ImageEngine(DEVICE)


async def last(engine: ImageEngine, job: ImageJob) -> Event:
    return [event async for event in engine.submit(job)][-1]


async def test_a_waiting_job_that_is_cancelled_ends_without_waiting_for_the_one_before(
    engine: ImageEngine, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_cancelled = threading.Event()
    hold_steps(monkeypatch, lambda *_: is_cancelled.is_set())
    first = asyncio.create_task(last(engine, job("sd", id="first")))
    await eventually(lambda: engine._drawing)
    second = asyncio.create_task(last(engine, job("sd", id="second")))
    await eventually(lambda: "second" in engine._jobs)
    engine.cancel("second")
    ended = await asyncio.wait_for(second, 60)
    assert isinstance(ended, Failed)
    assert ended.code == "cancelled"
    assert not first.done()
    is_cancelled.set()
    assert isinstance(await first, Finished)


async def test_a_caller_that_leaves_frees_the_device(engine: ImageEngine, job: Job) -> None:
    events = engine.submit(job("sd", steps=900))
    async for event in events:
        if isinstance(event, Progress):
            break
    await events.aclose()  # type: ignore[attr-defined]
    assert isinstance(await asyncio.wait_for(last(engine, job("sd", id="next")), 240), Finished)


@pytest.mark.daily("error0-out_of_memory", "error2-engine_failed")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("/secret/path"), "engine_failed"),
    ],
)
async def test_an_error_fails_its_job_and_not_the_next(
    engine: ImageEngine, job: Job, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    class Broken(ImagePipeline):
        def draw(self) -> None:  # type: ignore[override]
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(run, "ImagePipeline", Broken)
        failed = await last(engine, job("sd"))
    assert isinstance(failed, Failed)
    assert failed.code == code
    assert "/secret" not in failed.message
    assert "Traceback" in failed.detail
    assert failed.movable == ("larger" if code == "out_of_memory" else None)
    assert isinstance(await last(engine, job("sd")), Finished)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), CheckpointError("fp8 needs another GPU"), RuntimeError("odd")],
)
async def test_whatever_a_load_fails_with_another_worker_may_run_the_job(
    engine: ImageEngine, job: Job, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise type(error)(*error.args)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_cache, "load_checkpoint", refuse)
        failed = await last(engine, job("sd"))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.movable) == ("checkpoint_failed", "anywhere")
    assert failed.detail.partition("\n")[0] == str(error), "the worker's operator reads the first line"
    assert str(error) not in failed.message
    assert isinstance(await last(engine, job("sd")), Finished)


async def test_an_unsupported_task_fails_with_its_reason(engine: ImageEngine, job: Job) -> None:
    failed = await last(engine, job("sd", references=(plain_image(), plain_image())))
    assert isinstance(failed, Failed)
    assert failed.code == "unsupported"
    assert "one reference" in failed.message
