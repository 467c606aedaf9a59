"""A sticky error at any launch of a load, an image or a chat ends the process: no job hangs, and none is answered after
it. What would end the process ends the thread here, and the engine is thrown away."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.chat.engine import ChatEngine
from pipelines.classify.engine import ClassifyEngine
from pipelines.images.engine import ImageEngine
from pipelines.protocol import processes
from pipelines.protocol.chat import ChatJob, ChatSpec
from pipelines.protocol.classify import ClassifierSpec, ClassifyJob
from pipelines.protocol.images import CheckpointSpec
from pipelines.protocol.messages import LOST_DEVICE_EXIT
from tests.engines.chat_jobs import GREEDY, run
from tests.gpu.simulated.conftest import Part, allocated_bytes, parts
from tests.support.image_jobs import image_job
from tests.support.tiny_chat_checkpoints import make_llava, make_qwen
from tests.support.tiny_classifiers import make_text_classifier

GPU = torch.device("cuda")
LIMIT_S = 120
QUICK = (4, 997)  # a few places
Work = Callable[[], Awaitable[object]]


class Ended(BaseException):
    """The thread ends where the process would."""


@pytest.fixture
async def ended(monkeypatch: pytest.MonkeyPatch, lost_bytes: list[int]) -> AsyncIterator[asyncio.Event]:
    """Set when the process would have ended because of its device."""
    loop, happened = asyncio.get_running_loop(), asyncio.Event()

    def end(status: int) -> None:
        assert status == LOST_DEVICE_EXIT
        loop.call_soon_threadsafe(happened.set)
        raise Ended

    monkeypatch.setattr(processes.os, "_exit", end)  # type: ignore[attr-defined]
    yield happened
    lost_bytes.append(allocated_bytes())


async def lose_at_each(gpu: Any, part: Part, work: Work, ended: asyncio.Event) -> None:
    """Lose the device at every launch of a part of some work, which is begun anew each time."""
    begin = gpu.launches()
    await work()
    for nth in range(part[0] + 1, gpu.launches() - begin + 1, part[1]):
        ended.clear()
        begin = gpu.launches()
        gpu.fail_launch(nth)
        jobs = asyncio.ensure_future(work())
        over = asyncio.ensure_future(ended.wait())
        done, _ = await asyncio.wait({jobs, over}, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        assert done, f"launch {nth}: the process does not end, and neither do the jobs"
        if gpu.launches() - begin >= nth:
            assert over in (await asyncio.wait({over}, timeout=LIMIT_S))[0], f"launch {nth}: the process goes on"
        over.cancel()
        jobs.cancel()
        await asyncio.gather(jobs, over, return_exceptions=True)
        gpu.revive()


@pytest.mark.nightly
@pytest.mark.parametrize("part", parts(4))
async def test_an_image_with_its_load(flux: CheckpointSpec, gpu: Any, part: Part, ended: asyncio.Event) -> None:
    async def work() -> None:
        engine = ImageEngine(GPU)
        [_ async for _ in engine.submit(image_job(flux, steps=2))]

    await lose_at_each(gpu, part, work, ended)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (make_qwen, QUICK),
        *(pytest.param(make, part, marks=pytest.mark.nightly) for make in (make_qwen, make_llava) for part in parts(4)),
    ],
)
async def test_two_chats_with_their_load(
    make: Callable[[Path], Path], tmp_path: Path, gpu: Any, part: Part, ended: asyncio.Event
) -> None:
    spec = ChatSpec("model", make(tmp_path / "model"), vision=make is make_llava)
    jobs = [
        ChatJob(
            id=f"{number}", checkpoint=spec, messages=({"role": "user", "content": "Hello"},), seed=number,
            time_limit_s=240, max_tokens=3, sampling=GREEDY,
        )
        for number in range(2)
    ]  # fmt: skip

    async def work() -> None:
        engine = ChatEngine(GPU, cache_bytes=2**24)
        await asyncio.gather(*(run(engine, job) for job in jobs))
        engine.unload_except([])
        await engine.sleep()

    await lose_at_each(gpu, part, work, ended)


@pytest.mark.nightly
async def test_a_classifier_with_its_load(tmp_path: Path, gpu: Any, ended: asyncio.Event) -> None:
    spec = ClassifierSpec("blades", make_text_classifier(tmp_path / "blades"), "prompts")

    async def work() -> None:
        engine = ClassifyEngine(GPU)
        [_ async for _ in engine.submit(ClassifyJob("1", spec, texts=("a boat with a knife",)))]

    await lose_at_each(gpu, (0, 5), work, ended)
