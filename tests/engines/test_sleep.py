"""Engines whose weights leave the device, and come back for the next job with the same answer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.chat.engine import ChatEngine
from pipelines.classify.engine import ClassifyEngine
from pipelines.images.engine import ImageEngine
from pipelines.protocol.chat import ChatJob, ChatSpec
from pipelines.protocol.classify import Classified, ClassifierSpec, ClassifyJob
from pipelines.protocol.images import Finished, ImageJob
from pipelines.protocol.messages import CachedCheckpoints
from tests.engines.chat_jobs import run, text
from tests.engines.device import DEVICE
from tests.support.tiny_classifiers import make_text_classifier


async def test_image_weights_leave_and_the_next_image_is_the_same(job: Callable[..., ImageJob]) -> None:
    told: list[CachedCheckpoints] = []
    engine = ImageEngine(DEVICE, on_cached_checkpoints=told.append)
    first = [event async for event in engine.submit(job("sd", seed=3))][-1]
    assert told[-1].device_bytes > 0
    await engine.sleep()
    assert told[-1].device_bytes == 0
    again = [event async for event in engine.submit(job("sd", seed=3))][-1]
    assert isinstance(first, Finished)
    assert isinstance(again, Finished)
    assert again.images[0].data == first.images[0].data
    assert told[-1].device_bytes > 0


@pytest.mark.parametrize(("name", "vision"), [("qwen", False), ("llava", True)])  # in a batch, one after another
async def test_chat_weights_leave_and_the_next_answer_is_the_same(
    name: str, vision: bool, chat_job: Callable[..., ChatJob], chat_spec: Callable[..., ChatSpec]
) -> None:
    engine, job = ChatEngine(DEVICE), chat_job(checkpoint=chat_spec(name, vision=vision))
    first = text(await run(engine, job))
    checkpoint = await engine.load(job.checkpoint)
    await engine.sleep()
    assert engine._on_host == {job.checkpoint: checkpoint}
    assert not engine._device_loop._batched
    assert not engine._device_loop._sequential
    assert text(await run(engine, job)) == first
    assert await engine.load(job.checkpoint) is checkpoint
    assert engine._on_host == {}


async def test_a_chat_that_comes_while_weights_leave_is_answered(chat_job: Callable[..., ChatJob]) -> None:
    engine, job = ChatEngine(DEVICE), chat_job(model="qwen")
    first = text(await run(engine, job))
    leaving = engine._loop.create_task(engine.sleep())
    assert text(await run(engine, job)) == first
    await leaving


@pytest.mark.nightly
async def test_a_sleeping_chat_model_that_the_catalog_drops_is_forgotten(chat_job: Callable[..., ChatJob]) -> None:
    engine, job = ChatEngine(DEVICE), chat_job(model="qwen")
    await engine.load(job.checkpoint)
    await engine.sleep()
    engine.unload_except([])
    await engine.sleep()
    assert engine._on_host == {}


async def test_classifiers_leave_and_score_the_same(tmp_path: Path) -> None:
    spec = ClassifierSpec("blades", make_text_classifier(tmp_path / "blades"), "prompts")
    engine, job = ClassifyEngine(DEVICE), ClassifyJob("1", spec, texts=("a boat with a knife",))
    first = [event async for event in engine.submit(job)][-1]
    await engine.sleep()
    assert engine._on_host.keys() == {spec}
    again = [event async for event in engine.submit(job)][-1]
    assert isinstance(first, Classified)
    assert isinstance(again, Classified)
    assert again.scores == first.scores
    assert engine._on_host == {}
