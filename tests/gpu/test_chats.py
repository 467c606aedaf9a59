"""Chats on a GPU: decode steps that are captured as graphs, and prompts that share a pass, change no answer."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipelines.chat.engine import ChatEngine
from pipelines.protocol.chat import ChatFinished, ChatJob, ChatSpec
from tests.engines.chat_jobs import letters, run, text
from tests.support.tiny_chat_checkpoints import make_llama, make_qwen
from tests.support.tiny_long_chats import TOGETHER

GPU = torch.device("cuda")
MADE = {"qwen": make_qwen, "llama": make_llama, **TOGETHER}
CAPTURED = {"qwen", "llama", "gemma3", "ministral3"}
PROMPTS = (1, 7, 20, 60, 130, 200, 290, 33)


@pytest.mark.parametrize("name", MADE)
async def test_answers_together_are_those_alone(name: str, tmp_path: Path) -> None:
    """Twice together: a shape is captured when it comes again."""
    MADE[name](tmp_path / name)
    engine = ChatEngine(GPU, cache_bytes=2**26)
    spec = ChatSpec(name, tmp_path / name, context=512, dtype="float32")
    batching = (await engine.load(spec)).batching
    print(f"{name}: packs {batching.packs}, graphs {batching.graphs}, alone: {batching.unbatched_reason}")
    assert batching.graphs or name not in CAPTURED
    job = ChatJob("", spec, (), seed=0, time_limit_s=240, max_tokens=24, sampling=letters())
    texts = ["".join("abcdefghij"[(i * i + length) % 10] for i in range(length)) for length in PROMPTS]
    jobs = [
        replace(job, id=str(number), messages=({"role": "user", "content": content},))
        for number, content in enumerate(texts)
    ]
    alone = [text(await run(engine, each)) for each in jobs]
    assert len(set(alone)) > 1
    for _ in range(2):
        together = await asyncio.gather(*(run(engine, each) for each in jobs))
        assert all(isinstance(events[-1], ChatFinished) for events in together)
        assert [text(events) for events in together] == alone
    await engine.sleep()  # its thread would keep the memory from other tests


async def test_a_model_that_left_and_came_back_is_captured_anew(tmp_path: Path) -> None:
    """Its graphs knew where the weights were."""
    make_qwen(tmp_path / "qwen")
    engine = ChatEngine(GPU, cache_bytes=2**26)
    job = ChatJob(
        "one", ChatSpec("qwen", tmp_path / "qwen", dtype="float32"), ({"role": "user", "content": "abc"},), seed=0,
        time_limit_s=240, max_tokens=24, sampling=letters(),
    )  # fmt: skip
    first = [text(await run(engine, replace(job, id=str(number)))) for number in range(2)]
    await engine.sleep()
    filling = torch.empty(2**28, dtype=torch.uint8, device=GPU).fill_(255)
    assert text(await run(engine, replace(job, id="again"))) == first[0] == first[1]
    del filling
    await engine.sleep()
