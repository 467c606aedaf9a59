"""Models that see, and other models that can't share a batch."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from transformers import AutoProcessor, LlavaForConditionalGeneration

from pipelines.chat.engine import ChatEngine
from pipelines.chat.prompts import template_messages
from pipelines.protocol.chat import ChatFinished, ChatJob, ChatSampling, ChatSpec, JsonFormat, TextDelta
from pipelines.protocol.images import Failed
from tests.engines.chat_jobs import Job, run, text
from tests.engines.conftest import split_picture

QUESTION = {
    "role": "user",
    "content": [
        {"type": "text", "text": "What is this? "},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ],
}


@pytest.fixture
def seeing(chat_job: Job, chat_spec: Callable[..., ChatSpec]) -> Job:
    """A job with a picture for the model that sees."""

    def make(**fields: object) -> ChatJob:
        plain = chat_job(
            checkpoint=chat_spec("llava", vision=True), messages=(QUESTION,), images=(split_picture(upright=True),)
        )
        return replace(plain, **fields)  # type: ignore[arg-type]

    return make


async def test_a_picture_is_seen_as_the_bare_model_sees_it(chat_engine: ChatEngine, seeing: Job) -> None:
    asked = seeing()
    checkpoint = await chat_engine.load(asked.checkpoint)
    processor = AutoProcessor.from_pretrained(asked.checkpoint.path)
    bare = LlavaForConditionalGeneration.from_pretrained(asked.checkpoint.path)
    inputs = processor.apply_chat_template(
        template_messages(checkpoint, asked.messages, asked.images),
        add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
    )  # fmt: skip
    tokens = bare.generate(**inputs, max_new_tokens=24, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    events = await run(chat_engine, asked)
    assert text(events) == processor.decode(tokens, skip_special_tokens=True)
    assert isinstance(events[-1], ChatFinished)
    assert events[-1].usage.prompt_tokens == inputs["input_ids"].shape[1]
    other = await run(chat_engine, seeing(images=(split_picture(upright=False),)))
    assert text(other) != text(events)


async def test_what_can_be_asked_in_a_batch_can_be_asked_here(chat_engine: ChatEngine, seeing: Job) -> None:
    schema = {"type": "object", "properties": {"red": {"type": "boolean"}}, "required": ["red"]}
    warm = ChatSampling(temperature=1.0)
    asked = seeing(n=2, format=JsonFormat({**schema, "additionalProperties": False}), sampling=warm, logprobs=True)
    events = await run(chat_engine, asked)
    for choice in range(2):
        assert set(json.loads(text(events, choice))) == {"red"}
    assert all(event.logprobs for event in events if isinstance(event, TextDelta))


async def test_one_that_is_cancelled_makes_way_for_the_next(chat_engine: ChatEngine, seeing: Job) -> None:
    never_end = ChatSampling(temperature=0.0, logit_bias={2: -100})
    long = seeing(id="long", max_tokens=400, sampling=never_end)
    waiting = asyncio.create_task(run(chat_engine, seeing(id="next")))
    said = 0
    async for event in chat_engine.submit(long):
        said += isinstance(event, TextDelta)
        if said == 3:
            chat_engine.cancel("long")
    assert said < 30
    assert isinstance((await waiting)[-1], ChatFinished)


async def test_a_model_that_does_not_see_refuses_pictures(chat_engine: ChatEngine, chat_job: Job) -> None:
    events = await run(chat_engine, chat_job(messages=(QUESTION,), images=(split_picture(upright=True),)))
    assert isinstance(events[-1], Failed)
    assert (events[-1].code, events[-1].param) == ("unsupported", "messages")
