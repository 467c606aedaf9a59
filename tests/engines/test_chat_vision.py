"""Vision models, which can't share a batch."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import AutoProcessor, Gemma3TextConfig, LlavaForConditionalGeneration
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

from pipelines.chat.encoding import template_messages
from pipelines.chat.engine import ChatEngine
from pipelines.chat.steps.sequential import _reset_rope
from pipelines.protocol.chat import ChatFinished, ChatJob, ChatSampling, ChatSpec, JsonFormat, TextDelta
from pipelines.protocol.images import Failed
from tests.engines.chat_jobs import TOKENIZER, Job, letters, run, text
from tests.engines.conftest import split_image
from tests.engines.holds import hold_tokens

QUESTION = {
    "role": "user",
    "content": [
        {"type": "text", "text": "What is this? "},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ],
}


@pytest.fixture
def vision_job(chat_job: Job, chat_spec: Callable[..., ChatSpec]) -> Job:
    """A job with an image, for the vision model."""

    def make(**fields: object) -> ChatJob:
        plain = chat_job(
            checkpoint=chat_spec("llava", vision=True), messages=(QUESTION,), images=(split_image(upright=True),)
        )
        return replace(plain, **fields)  # type: ignore[arg-type]

    return make


async def test_an_answer_about_an_image_is_what_the_bare_model_generates(
    chat_engine: ChatEngine, vision_job: Job
) -> None:
    job = vision_job()
    checkpoint = await chat_engine.load(job.checkpoint)
    processor = AutoProcessor.from_pretrained(job.checkpoint.path)
    bare = LlavaForConditionalGeneration.from_pretrained(job.checkpoint.path)
    inputs = processor.apply_chat_template(
        template_messages(checkpoint, job.messages, job.images),
        add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
    )  # fmt: skip
    tokens = bare.generate(**inputs, max_new_tokens=24, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    events = await run(chat_engine, job)
    assert text(events) == processor.decode(tokens, skip_special_tokens=True)
    assert isinstance(events[-1], ChatFinished)
    assert events[-1].usage.prompt_tokens == inputs["input_ids"].shape[1]
    other = await run(chat_engine, vision_job(images=(split_image(upright=False),)))
    assert text(other) != text(events)


async def test_all_options_work_without_a_batch(chat_engine: ChatEngine, vision_job: Job) -> None:
    schema = {"type": "object", "properties": {"red": {"type": "boolean"}}, "required": ["red"]}
    sampling = ChatSampling(temperature=1.0)
    job = vision_job(
        n=2, format=JsonFormat({**schema, "additionalProperties": False}), sampling=sampling, logprobs=True
    )
    events = await run(chat_engine, job)
    for choice in range(2):
        assert set(json.loads(text(events, choice))) == {"red"}
    assert all(event.logprobs for event in events if isinstance(event, TextDelta))


async def test_after_a_cancelled_job_the_next_one_runs(
    chat_engine: ChatEngine, vision_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_cancelled = threading.Event()
    hold_tokens(monkeypatch, "sequential", lambda step: step < 40 or is_cancelled.is_set())
    with_image_token = len(TOKENIZER) + 1
    long = vision_job(id="long", max_tokens=400, sampling=letters(with_image_token))
    waiting = asyncio.create_task(run(chat_engine, vision_job(id="next")))
    deltas = 0
    async for event in chat_engine.submit(long):
        deltas += isinstance(event, TextDelta)
        if deltas == 3:
            chat_engine.cancel("long")
            is_cancelled.set()
    assert 3 <= deltas < 400
    assert isinstance((await waiting)[-1], ChatFinished)


async def test_a_text_model_refuses_images(chat_engine: ChatEngine, chat_job: Job) -> None:
    events = await run(chat_engine, chat_job(messages=(QUESTION,), images=(split_image(upright=True),)))
    assert isinstance(events[-1], Failed)
    assert (events[-1].code, events[-1].param) == ("unsupported", "messages")


def test_the_rotary_embedding_of_each_kind_of_layer_begins_anew() -> None:
    kinds = ["sliding_attention", "full_attention"]
    ropes = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in kinds}
    rotary = Gemma3RotaryEmbedding(Gemma3TextConfig(layer_types=kinds, num_hidden_layers=2, rope_parameters=ropes))
    first = rotary.full_attention_inv_freq.clone()
    rotary.full_attention_inv_freq.mul_(2.0)  # as behind a long text
    _reset_rope(rotary)
    assert torch.equal(rotary.full_attention_inv_freq, first)
