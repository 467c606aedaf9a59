"""The chat engine with tiny models: what a request gets does not depend on who else is there."""

import asyncio
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipelines.chat.engine import ChatEngine
from pipelines.chat.scheduler import Batch
from pipelines.protocol.chat import (
    Admitted,
    ChatFinished,
    ChatJob,
    ChatSampling,
    ChatSpec,
    ChoiceFinished,
    Counted,
    CountJob,
    Spent,
    TextDelta,
)
from pipelines.protocol.images import Failed, Queued, Started
from tests.engines.chat_jobs import GREEDY, Job, run, text


@pytest.mark.parametrize("model", ["qwen", "llama", "mistral"])
async def test_an_answer_is_what_the_bare_model_generates(chat_engine: ChatEngine, chat_job: Job, model: str) -> None:
    asked = chat_job("What is the weather in Paris?", model)
    tokenizer = AutoTokenizer.from_pretrained(asked.checkpoint.path)
    bare = AutoModelForCausalLM.from_pretrained(asked.checkpoint.path)
    prompt = tokenizer.apply_chat_template(list(asked.messages), add_generation_prompt=True, return_tensors="pt")
    tokens = bare.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    events = await run(chat_engine, asked)
    assert text(events) == tokenizer.decode(tokens, skip_special_tokens=True)
    assert isinstance(events[-1], ChatFinished)
    assert events[-1].usage.prompt_tokens == prompt["input_ids"].shape[1]
    assert events[-1].usage.completion_tokens == len(tokens)


async def test_events_come_in_order(chat_engine: ChatEngine, chat_job: Job) -> None:
    kinds = [type(event) for event in await run(chat_engine, chat_job())]
    assert kinds[:3] == [Queued, Admitted, Started]
    assert kinds[-2:] == [ChoiceFinished, ChatFinished]
    assert set(kinds[3:-2]) == {TextDelta}


@pytest.mark.parametrize("sampling", [GREEDY, ChatSampling(temperature=0.8, top_p=0.9, frequency_penalty=0.5)])
async def test_thirty_two_streams_get_what_each_gets_alone(
    chat_engine: ChatEngine, chat_job: Job, sampling: ChatSampling
) -> None:
    asked = [
        chat_job("word " * (index % 9) + str(index), sampling=sampling, seed=index, max_tokens=8 + index)
        for index in range(32)
    ]
    crowd = await asyncio.gather(*(run(chat_engine, each) for each in asked))
    alone = [await run(chat_engine, each) for each in asked]
    assert [text(events) for events in crowd] == [text(events) for events in alone]
    assert len({text(events) for events in alone}) > 16


async def test_choices_have_seeds_of_their_own(chat_engine: ChatEngine, chat_job: Job) -> None:
    warm = ChatSampling(temperature=1.0)
    together = await run(chat_engine, chat_job(sampling=warm, n=3, seed=10))
    apart = [await run(chat_engine, chat_job(sampling=warm, seed=10 + choice)) for choice in range(3)]
    assert [text(together, choice) for choice in range(3)] == [text(events) for events in apart]
    assert isinstance(together[-1], ChatFinished)
    assert together[-1].usage.completion_tokens == sum(events[-1].usage.completion_tokens for events in apart)  # type: ignore[union-attr]


async def test_a_cancelled_job_frees_its_slot(
    chat_engine: ChatEngine, chat_job: Job, chat_spec: Callable[..., ChatSpec]
) -> None:
    one_row = chat_spec("qwen", max_batch=1)
    endless = ChatSampling(temperature=0.0, logit_bias={2: -100})
    long = chat_job(checkpoint=one_row, max_tokens=400, sampling=endless)
    waiting = asyncio.create_task(run(chat_engine, chat_job(checkpoint=one_row)))
    said = spent = 0
    async for event in chat_engine.submit(long):
        said += isinstance(event, TextDelta)
        if said == 3:
            chat_engine.cancel(long.id)
        if isinstance(event, Spent):
            spent = event.usage.completion_tokens
        if isinstance(event, Failed):
            assert event.code == "cancelled"
    assert said <= spent < 20
    assert isinstance((await waiting)[-1], ChatFinished)


async def test_an_overlong_prompt_is_refused_with_both_lengths(chat_engine: ChatEngine, chat_job: Job) -> None:
    events = await run(chat_engine, chat_job("x" * 600))
    assert isinstance(events[-1], Failed)
    assert (events[-1].code, events[-1].param) == ("context_length_exceeded", "messages")
    assert "maximum context length is 512 tokens" in events[-1].message
    asked_tokens = 600 + await count(chat_engine, chat_job(""))
    assert f"your messages take {asked_tokens} of them" in events[-1].message
    assert not any(isinstance(event, Admitted) for event in events)


async def test_an_answer_ends_where_the_context_does(chat_engine: ChatEngine, chat_job: Job) -> None:
    never_end = ChatSampling(temperature=0.0, logit_bias={2: -100})
    events = await run(chat_engine, chat_job("x" * 440, sampling=never_end, max_tokens=2**31))
    assert events[-2] == ChoiceFinished(0, "length")
    assert isinstance(events[-1], ChatFinished)
    assert events[-1].usage.prompt_tokens + events[-1].usage.completion_tokens == 512


async def test_truncation_drops_whole_turns_from_the_oldest_on(chat_engine: ChatEngine, chat_job: Job) -> None:
    turns = [{"role": role, "content": f"{i}" * 60} for i in range(9) for role in ("user", "assistant")]
    messages = ({"role": "system", "content": "Be kind."}, *turns, {"role": "user", "content": "And now?"})
    events = await run(chat_engine, chat_job(messages=messages, truncate=True, max_tokens=4))
    admitted = next(event for event in events if isinstance(event, Admitted))
    kept = (messages[0], *messages[1 + admitted.dropped_messages :])
    assert kept[1]["role"] == "user"
    assert await count(chat_engine, chat_job(messages=kept)) == admitted.prompt_tokens < 512
    assert await count(chat_engine, chat_job(messages=(messages[0], *messages[admitted.dropped_messages - 1 :]))) >= 512


async def count(engine: ChatEngine, job: ChatJob) -> int:
    events = await run(engine, CountJob(job.id, job.checkpoint, job.messages))
    assert isinstance(events[-1], Counted)
    return events[-1].tokens


async def test_a_count_says_when_it_starts_and_goes_on_when_nobody_wants_it(
    chat_engine: ChatEngine, chat_job: Job
) -> None:
    events = []
    async for event in chat_engine.submit(CountJob("c", chat_job().checkpoint, chat_job().messages)):
        events.append(type(event))
        chat_engine.cancel("c")
    assert events == [Queued, Started, Counted]


async def test_what_runs_too_long_is_stopped(chat_engine: ChatEngine, chat_job: Job) -> None:
    events = await run(chat_engine, chat_job(time_limit_s=0.0))
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "timed_out"


async def test_rows_wait_for_memory_and_lose_nothing(chat_job: Job) -> None:
    roomy = ChatEngine(torch.device("cpu"), cache_bytes=2**28)
    tight = ChatEngine(torch.device("cpu"), cache_bytes=3 * 128 * 2 * 2 * 2 * 16 * 4)  # three rows of 128 tokens
    asked = [chat_job(f"number {index}", max_tokens=70) for index in range(6)]
    assert [text(await run(roomy, each)) for each in asked] == [
        text(events) for events in await asyncio.gather(*(run(tight, each) for each in asked))
    ]


async def test_a_folder_without_weights_is_a_failure_of_the_checkpoint(
    chat_engine: ChatEngine, chat_job: Job, tmp_path: Path
) -> None:
    empty = ChatSpec("empty", tmp_path)
    events = await run(chat_engine, CountJob("c", empty, ({"role": "user", "content": "Hi"},)))
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "checkpoint_failed"


async def test_logprobs_are_those_of_the_bare_model(chat_engine: ChatEngine, chat_job: Job) -> None:
    asked = chat_job(logprobs=True, top_logprobs=3, max_tokens=12)
    events = await run(chat_engine, asked)
    told = [each for event in events if isinstance(event, TextDelta) for each in event.logprobs]
    tokenizer = AutoTokenizer.from_pretrained(asked.checkpoint.path)
    bare = AutoModelForCausalLM.from_pretrained(asked.checkpoint.path)
    prompt = tokenizer.apply_chat_template(list(asked.messages), add_generation_prompt=True, return_tensors="pt")
    whole = bare.generate(**prompt, max_new_tokens=12, do_sample=False)
    length = prompt["input_ids"].shape[1]
    logits = bare(whole).logits[0, length - 1 : -1].detach()
    expected = torch.log_softmax(logits.double(), dim=-1)
    answer = whole[0, length:]
    assert b"".join(each.data for each in told).decode(errors="replace") == tokenizer.decode(answer)
    assert sum(each.logprob for each in told) == pytest.approx(
        float(expected[torch.arange(len(answer)), answer].sum()), abs=1e-3
    )
    for each, row in zip(told, expected, strict=True):
        assert [top.logprob for top in each.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)


async def test_a_stop_string_ends_the_answer_before_it_shows(chat_engine: ChatEngine, chat_job: Job) -> None:
    whole = text(await run(chat_engine, chat_job(max_tokens=40)))
    stop = whole[10:14]
    events = await run(chat_engine, chat_job(max_tokens=40, stop=(stop, "never said")))
    assert text(events) == whole[: whole.index(stop)]
    assert events[-2] == ChoiceFinished(0, "stop")
    assert isinstance(events[-1], ChatFinished)
    assert events[-1].usage.completion_tokens < 40


async def test_one_that_never_fits_into_memory_fails_alone(chat_job: Job) -> None:
    tight = ChatEngine(torch.device("cpu"), cache_bytes=3 * 128 * 2 * 2 * 2 * 16 * 4)  # three rows of 128 tokens
    asked = [chat_job("x" * 420), *(chat_job(f"number {index}") for index in range(3))]
    too_long, *others = [events[-1] for events in await asyncio.gather(*(run(tight, each) for each in asked))]
    assert isinstance(too_long, Failed)
    assert too_long.code == "out_of_memory"
    assert all(isinstance(event, ChatFinished) for event in others)


async def test_a_failure_on_the_way_into_the_batch_fails_its_request_and_not_the_next(
    chat_engine: ChatEngine, chat_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.chat.device_loop.batched_token_bytes", fail)
        failed = (await asyncio.wait_for(run(chat_engine, chat_job()), 60))[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "out_of_memory"
    assert isinstance((await asyncio.wait_for(run(chat_engine, chat_job()), 60))[-1], ChatFinished)


async def test_checkpoints_share_the_memory_for_keys_and_values(chat_job: Job) -> None:
    budget = 2**24
    engine = ChatEngine(torch.device("cpu"), cache_bytes=budget)
    for model, shares in (("qwen", 1), ("llama", 2)):
        assert isinstance((await run(engine, chat_job(model=model)))[-1], ChatFinished)
        limits = [batch._forward.slots.most_places * batch._token_bytes for batch in _batches(engine)]
        assert limits == pytest.approx([budget / shares] * shares, rel=0.01)
    engine.keep([chat_job(model="llama").checkpoint])
    await _until(lambda: len(_batches(engine)) == 1)
    assert _batches(engine)[0]._forward.slots.most_places * _batches(engine)[0]._token_bytes > 0.9 * budget


async def test_weights_that_the_catalog_dropped_while_they_were_used_go_after_that(
    chat_engine: ChatEngine, chat_job: Job
) -> None:
    never_end = ChatSampling(temperature=0.0, logit_bias={2: -100})
    asked = chat_job(max_tokens=200, sampling=never_end)
    weights = weakref.ref((await chat_engine.load(asked.checkpoint)).model)
    answering = asyncio.create_task(run(chat_engine, asked))
    await _until(lambda: bool(_batches(chat_engine)))
    chat_engine.keep([])
    assert isinstance((await answering)[-1], ChatFinished)
    del answering
    await _until(lambda: weights() is None)


def _batches(engine: ChatEngine) -> list[Batch]:
    return list(engine._device_loop._batches.values())


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
