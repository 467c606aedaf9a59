"""Any one allocation of a swap or of chats fails: what is answered is right, and no memory is left behind."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.chat.engine import ChatEngine
from pipelines.classify.engine import ClassifyEngine
from pipelines.device.memory import Budgets
from pipelines.images.engine import ImageEngine
from pipelines.protocol.chat import ChatFinished, ChatJob, ChatSampling, ChatSpec, JsonFormat
from pipelines.protocol.classify import Classified, ClassifierSpec, ClassifyJob
from pipelines.protocol.images import CheckpointSpec
from tests.engines.chat_jobs import GREEDY, run, text
from tests.engines.conftest import split_image
from tests.engines.test_chat_vision import QUESTION
from tests.gpu.conftest import draw
from tests.gpu.simulated.conftest import Part, allocated_bytes, parts
from tests.support.image_jobs import image_job
from tests.support.tiny_chat_checkpoints import make_llava, make_qwen
from tests.support.tiny_classifiers import make_text_classifier

pytestmark = pytest.mark.nightly

GPU = torch.device("cuda")
RANDOM = ChatSampling(temperature=1.0)
CLOSING = JsonFormat({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})


@pytest.mark.parametrize("part", parts(4))
async def test_a_swap_goes_on_after_any_allocation_that_fails_once(flux: CheckpointSpec, gpu: Any, part: Part) -> None:
    """Of two checkpoints the device has room for one: the other one is on the host, and each image swaps them."""
    size = (await ImageEngine(GPU).load(flux)).weights_bytes
    engine = ImageEngine(GPU, Budgets(size + 1000, 2 * size, 2**30))
    jobs = [image_job(replace(flux, name=f"{n}", version=n), id=f"{n}", steps=1) for n in range(2)]
    expected = [(await draw(engine, job))[0] for job in jobs]
    begin = gpu.allocations()
    await draw(engine, jobs[0])
    total, used = gpu.allocations() - begin, allocated_bytes()
    which = 1
    for nth in range(part[0] + 1, total + 1, part[1]):
        gpu.fail_allocation(nth)
        assert np.array_equal((await draw(engine, jobs[which]))[0], expected[which]), nth
        gpu.fail_allocation(-1)
        assert allocated_bytes() <= used, nth
        which = 1 - which
    engine.close()


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[ChatJob]]:
    """Three chats at once, two with random numbers, of which one ends an object in its last tokens, and one without;
    those of the vision model about an image."""
    folder = tmp_path_factory.mktemp("chats")
    made: dict[str, Path] = {"qwen": make_qwen(folder / "qwen"), "llava": make_llava(folder / "llava")}

    def make(name: str) -> list[ChatJob]:
        vision = name == "llava"
        spec = ChatSpec(name, made[name], dtype="float32", vision=vision)
        asked = QUESTION if vision else {"role": "user", "content": "Hello"}
        images = (split_image(upright=True),) if vision else ()
        return [
            ChatJob(
                id=f"{number}", checkpoint=spec, messages=(asked,), images=images, seed=number, time_limit_s=240,
                max_tokens=16 if number == 1 else 3, format=CLOSING if number == 1 else None,
                sampling=GREEDY if number == 2 else RANDOM,
            )
            for number in range(3)
        ]  # fmt: skip

    return make


async def answers(engine: ChatEngine, jobs: list[ChatJob]) -> list[str]:
    """Return the texts of chats that are answered at once; none may fail."""
    ended = await asyncio.wait_for(asyncio.gather(*(run(engine, job) for job in jobs)), 240)
    for events in ended:
        assert isinstance(events[-1], ChatFinished), events[-1]
    return [text(events) for events in ended]


@pytest.mark.parametrize("model", ["qwen", "llava"])  # in a batch, and one after another
@pytest.mark.parametrize("part", parts(4))
async def test_chats_are_answered_alike_after_any_allocation_that_fails_once(
    chats: Callable[[str], list[ChatJob]], gpu: Any, part: Part, model: str
) -> None:
    jobs, before = chats(model), allocated_bytes()
    engine = ChatEngine(GPU, cache_bytes=2**24)
    expected = await answers(engine, jobs)
    begin = gpu.allocations()
    assert await answers(engine, jobs) == expected
    for nth in range(part[0] + 1, gpu.allocations() - begin + 1, part[1]):
        gpu.fail_allocation(nth)
        assert await answers(engine, jobs) == expected, nth
        gpu.fail_allocation(-1)
    await engine.sleep()  # which waits for the thread that answers to let go; eviction does not
    engine.unload_except([])
    assert allocated_bytes() <= before


@pytest.mark.parametrize("part", parts(4))
async def test_a_chat_model_loads_after_any_allocation_that_fails_once(
    chats: Callable[[str], list[ChatJob]], gpu: Any, part: Part
) -> None:
    """From the disk, and back from the host."""
    job = chats("qwen")[2]
    before, begin = allocated_bytes(), gpu.allocations()
    engine = ChatEngine(GPU, cache_bytes=2**24)
    expected = await answers(engine, [job])
    await engine.sleep()
    middle = gpu.allocations()
    assert await answers(engine, [job]) == expected
    total = {"disk": middle - begin, "host": gpu.allocations() - middle}
    await engine.sleep()
    for nth in range(part[0] + 1, total["host"] + 1, part[1]):
        gpu.fail_allocation(nth)
        assert await answers(engine, [job]) == expected, nth
        gpu.fail_allocation(-1)
        await engine.sleep()
        assert allocated_bytes() <= before, nth
    for nth in range(part[0] + 1, total["disk"] + 1, part[1]):
        engine.unload_except([])
        await engine.sleep()
        gpu.fail_allocation(nth)
        assert await answers(engine, [job]) == expected, nth
        gpu.fail_allocation(-1)
    await engine.sleep()
    engine.unload_except([])
    assert allocated_bytes() <= before


async def test_a_classifier_scores_after_any_allocation_that_fails_once(tmp_path: Path, gpu: Any) -> None:
    spec = ClassifierSpec("blades", make_text_classifier(tmp_path / "blades"), "prompts")
    engine, job = ClassifyEngine(GPU), ClassifyJob("1", spec, texts=("a boat with a knife",))

    async def scores() -> Any:
        last = [event async for event in engine.submit(job)][-1]
        assert isinstance(last, Classified), last
        return last.scores

    begin = gpu.allocations()
    expected = await scores()
    total = gpu.allocations() - begin
    for nth in range(1, total + 1, 3):
        engine.unload_except([])
        gpu.fail_allocation(nth)
        assert await scores() == expected, nth
        gpu.fail_allocation(-1)
