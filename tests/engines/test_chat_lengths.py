"""Whatever a config says that depends on length: alone, together and by the bare model, every answer is the same."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipelines.chat.engine import ChatEngine
from pipelines.protocol.chat import ChatFinished, ChatJob, ChatSpec
from tests.engines.chat_jobs import LETTER_IDS, letters, run, text
from tests.engines.device import DEVICE
from tests.support.tiny_long_chats import ONE_AT_A_TIME, TOGETHER

TOKENS = 16
OF_EXPERTS = {
    "phimoe", "gpt-oss", "deepseek", "deepseek-yarn", "gemma4-experts", "glm4-experts", "granite-hybrid",
    "hunyuan-experts", "lfm2-experts", "mimo", "minimax-m2", "qwen3-next",
}  # fmt: skip
PROMPTS = (2, 25, 95, 170, 600)  # below, at and beyond each threshold, and one that attends apart from the others


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a checkpoint, made once."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = {**TOGETHER, **ONE_AT_A_TIME}[name](tmp_path_factory.mktemp("long") / name)
        return made[name]

    return make


def jobs(folder: Path, label: str) -> list[ChatJob]:
    spec = ChatSpec(folder.name, folder, context=2048, dtype="float32")
    job = ChatJob("", spec, (), seed=0, time_limit_s=240, max_tokens=TOKENS, sampling=letters())
    texts = ["".join("abcdefghij"[(i * i + length) % 10] for i in range(length)) for length in PROMPTS]
    return [
        replace(job, id=f"{label} {i}", messages=({"role": "user", "content": content},))
        for i, content in enumerate(texts)
    ]


def bare(folder: Path, job: ChatJob) -> str:
    """By a model that was loaded for this answer alone: some remember the longest text they have seen."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(list(job.messages), add_generation_prompt=True, return_tensors="pt")
    count = prompt["input_ids"].shape[1]
    with torch.inference_mode():
        others = [token for token in range(model.config.vocab_size) if token not in LETTER_IDS.values()]
        tokens = model.generate(**prompt, max_new_tokens=TOKENS, do_sample=False, suppress_tokens=others)
    answer: str = tokenizer.decode(tokens[0, count:], skip_special_tokens=True)
    return answer


@pytest.mark.daily("phi-longrope", "gpt-oss", "qwen3.5")
@pytest.mark.parametrize("name", [*TOGETHER, *ONE_AT_A_TIME])
async def test_an_answer_of_any_length_is_the_bare_models(name: str, folder: Callable[[str], Path]) -> None:
    if DEVICE.type == "cuda" and name in OF_EXPERTS:
        pytest.skip("the library counts the tokens of experts by a kernel that the simulated GPU lacks")
    engine = ChatEngine(DEVICE, cache_bytes=2**26)
    checkpoint = await engine.load(ChatSpec(name, folder(name), context=2048, dtype="float32"))
    assert (checkpoint.batching.unbatched_reason is None) == (name in TOGETHER), checkpoint.batching.unbatched_reason
    expected = [bare(folder(name), job) for job in jobs(folder(name), "bare")]
    together = await asyncio.gather(*(run(engine, job) for job in jobs(folder(name), "together")))
    assert all(isinstance(events[-1], ChatFinished) for events in together)
    assert [text(events) for events in together] == expected
    alone = [text(await run(engine, job)) for job in reversed(jobs(folder(name), "alone"))]
    assert alone[::-1] == expected
    assert len(set(expected)) > 1


async def test_a_rotary_embedding_that_no_text_is_long_enough_to_change_is_one_that_never_does(
    folder: Callable[[str], Path],
) -> None:
    for context, together in ((None, True), (120, True), (121, False)):
        checkpoint = await ChatEngine(DEVICE).load(ChatSpec("short", folder("llama-dynamic"), context=context))
        assert (checkpoint.batching.unbatched_reason is None) == together
