"""What is done for a chat before it is admitted: bounded by the context, shared by keys, given up with its caller."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.chat import preparation, request_builder
from pipelines.chat.engine import ChatEngine
from pipelines.chat.prompts.chat_template import TemplateUse
from pipelines.protocol.chat import Admitted, ChatFinished, ChatSpec, CountFinished, CountJob, JsonFormat, Message
from pipelines.protocol.images import Failed
from tests.engines.chat_jobs import Job, run

SLOW = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
CONTEXT = 512


def spied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the kind of each prompt that is made from now on."""
    made: list[str] = []
    for name in ("encode", "render"):
        original: Callable[..., Any] = getattr(TemplateUse, name)

        def spy(*arguments: Any, name: str = name, original: Callable[..., Any] = original, **options: Any) -> Any:
            made.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(TemplateUse, name, spy)
    return made


async def test_what_is_far_too_long_is_refused_without_a_prompt_of_it(
    chat_engine: ChatEngine, chat_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(chat_engine, chat_job())
    made = spied(monkeypatch)
    (*_, failed) = await run(chat_engine, chat_job("word " * 400_000))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.param) == ("context_length_exceeded", "messages")
    assert " at least " in failed.message
    assert made == ["render"], "two million characters were never tokenized as a whole"
    said = int(failed.message.partition("at least ")[2].partition(" ")[0])
    assert CONTEXT <= said < 20_000, "no more was counted than a piece"


async def test_a_count_of_what_is_far_too_long_is_made_in_pieces(
    chat_engine: ChatEngine, chat_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def count(text: str) -> int:
        (*_, counted) = await run(
            chat_engine, CountJob("c", chat_job().checkpoint, ({"role": "user", "content": text},))
        )
        assert isinstance(counted, CountFinished)
        return counted.tokens

    plain = await count("")
    made = spied(monkeypatch)
    assert await count("x" * 100_000) == 100_000 + plain
    assert "encode" not in made


@pytest.mark.parametrize("size", [20, 90])  # characters of a message: the whole is somewhat too long, or by far
async def test_turns_are_dropped_with_few_prompts_and_as_few_as_have_to_go(
    chat_engine: ChatEngine, chat_job: Job, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    turns: list[Message] = [
        {"role": role, "content": chr(97 + number % 26) * (size + number % 7)}
        for number in range(64)
        for role in ("user", "assistant")
    ]
    messages = (*turns, {"role": "user", "content": "And now?"})
    made = spied(monkeypatch)
    events = await run(chat_engine, chat_job(messages=messages, truncate=True, max_tokens=1))
    assert made.count("encode") <= 4
    (admitted,) = (event for event in events if isinstance(event, Admitted))
    assert admitted.prompt_tokens < CONTEXT
    one_more = messages[admitted.dropped_messages - 2 :]
    (*_, refused) = await run(chat_engine, chat_job(messages=one_more))
    assert isinstance(refused, Failed)
    assert refused.code == "context_length_exceeded"


async def test_a_last_turn_that_does_not_fit_alone_is_refused(chat_engine: ChatEngine, chat_job: Job) -> None:
    for last in ("x" * 600, "x" * 60_000):
        messages = ({"role": "user", "content": "a"}, {"role": "user", "content": last})
        (*_, refused) = await run(chat_engine, chat_job(messages=messages, truncate=True))
        assert isinstance(refused, Failed)
        assert refused.code == "context_length_exceeded"


@pytest.fixture
def slow_spec(chat_job: Job, tmp_path: Path) -> ChatSpec:
    """A checkpoint whose template never ends for a message that says so."""
    folder = tmp_path / "slow"
    shutil.copytree(chat_job().checkpoint.path, folder)
    template = folder / "chat_template.jinja"
    template.write_text("{% if messages[-1].content == 'forever' %}" + SLOW + "{% endif %}" + template.read_text())
    return ChatSpec("slow", folder)


async def test_a_template_that_does_not_end_keeps_no_other_key_and_ends_with_its_caller(
    chat_engine: ChatEngine, chat_job: Job, slow_spec: ChatSpec
) -> None:
    jobs = [chat_job("forever", checkpoint=slow_spec, owner="hog") for _ in range(3)]
    hogs = [asyncio.create_task(run(chat_engine, job)) for job in jobs]
    for _ in range(3):
        (*_, answered) = await run(chat_engine, chat_job(checkpoint=slow_spec, owner="guest"))
        assert isinstance(answered, ChatFinished)
    assert not any(hog.done() for hog in hogs)
    for job in jobs:
        chat_engine.cancel(job.id)
    for hog in hogs:
        (*_, failed) = await hog
        assert isinstance(failed, Failed)
        assert failed.code == "cancelled"
    (*_, answered) = await run(chat_engine, chat_job(checkpoint=slow_spec, owner="hog"))
    assert isinstance(answered, ChatFinished), "its thread is free again"


async def test_a_template_that_does_not_end_is_the_messages_fault(
    chat_engine: ChatEngine, chat_job: Job, slow_spec: ChatSpec
) -> None:
    await run(chat_engine, chat_job(checkpoint=slow_spec))
    chat_engine._preparation._limit_s = 1.0
    (*_, failed) = await run(chat_engine, chat_job("forever", checkpoint=slow_spec))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.param) == ("invalid_value", "messages")
    assert "chat template took longer than" in failed.message


async def test_a_template_that_ends_for_no_message_is_a_fault_of_the_checkpoint(
    chat_engine: ChatEngine, slow_spec: ChatSpec, chat_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.chat.loading.checkpoint.LIMIT_S", 0.2)
    (slow_spec.path / "chat_template.jinja").write_text(SLOW)
    (*_, failed) = await run(chat_engine, chat_job(checkpoint=slow_spec))
    assert isinstance(failed, Failed)
    assert failed.code == "checkpoint_failed"
    assert "does not end" in (failed.detail or "")


async def test_a_schema_that_takes_too_long_is_named(
    chat_engine: ChatEngine, chat_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[preparation._Work] = []
    original = request_builder._constrained

    class Recorded(preparation._Work):
        def __init__(self, call: Callable[[], Any]) -> None:
            super().__init__(call)
            made.append(self)

    def constrained(*arguments: Any) -> Any:
        made[-1].interrupt(preparation.TookTooLong)  # as when its time is up
        return original(*arguments)

    monkeypatch.setattr(preparation, "_Work", Recorded)
    monkeypatch.setattr(request_builder, "_constrained", constrained)
    (*_, failed) = await run(chat_engine, chat_job(format=JsonFormat({"type": "object"})))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.param) == ("invalid_value", "response_format")
    assert "took longer than" in failed.message


async def test_prompts_of_many_keys_are_made_beside_each_other_as_alone(chat_engine: ChatEngine, chat_job: Job) -> None:
    texts = [f"<|im_end|> {number} " + "word " * number for number in range(40)]
    jobs = [chat_job(text, max_tokens=1, owner=str(number % 16)) for number, text in enumerate(texts)]
    alone = [await run(chat_engine, job) for job in jobs]
    beside = await asyncio.gather(*(run(chat_engine, replace(job, id=f"b{job.id}")) for job in jobs))
    assert [tokens(events) for events in beside] == [tokens(events) for events in alone]


def tokens(events: list[Any]) -> int:
    return next(event.prompt_tokens for event in events if isinstance(event, Admitted))
