"""The chat engine with tiny models: what a request gets does not depend on the rest of the batch."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipelines.chat.engine import ChatEngine
from pipelines.chat.model.kv_cache import KVCacheLayer
from pipelines.chat.request_builder import build_sequences
from pipelines.chat.steps.batched import BatchedGenerator
from pipelines.protocol.chat import (
    Admitted,
    ChatEvent,
    ChatFinished,
    ChatJob,
    ChatSampling,
    ChatSpec,
    ChoiceFinished,
    CountFinished,
    CountJob,
    PartialUsage,
    TextDelta,
)
from pipelines.protocol.images import Failed, Queued, Started
from tests.engines.chat_jobs import GREEDY, LETTER_IDS, TOKENIZER, Job, letters, run, text
from tests.engines.device import DEVICE
from tests.engines.holds import hold_tokens
from tests.support.tiny_long_chats import make_lfm2


@pytest.mark.parametrize("model", ["qwen", "llama", "mistral"])
async def test_an_answer_is_what_the_bare_model_generates(chat_engine: ChatEngine, chat_job: Job, model: str) -> None:
    job = chat_job("What is the weather in Paris?", model)
    tokenizer = AutoTokenizer.from_pretrained(job.checkpoint.path)
    bare = AutoModelForCausalLM.from_pretrained(job.checkpoint.path)
    prompt = tokenizer.apply_chat_template(list(job.messages), add_generation_prompt=True, return_tensors="pt")
    tokens = bare.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    events = await run(chat_engine, job)
    assert text(events) == tokenizer.decode(tokens, skip_special_tokens=True)
    assert isinstance(events[-1], ChatFinished)
    assert events[-1].usage.prompt_tokens == prompt["input_ids"].shape[1]
    assert events[-1].usage.completion_tokens == len(tokens)


async def test_events_come_in_order(chat_engine: ChatEngine, chat_job: Job) -> None:
    kinds = [type(event) for event in await run(chat_engine, chat_job(sampling=letters()))]
    assert kinds[:3] == [Queued, Admitted, Started]
    assert kinds[-2:] == [ChoiceFinished, ChatFinished]
    assert set(kinds[3:-2]) == {TextDelta}


@pytest.mark.daily("sampling0")
@pytest.mark.parametrize("sampling", [GREEDY, ChatSampling(temperature=0.8, top_p=0.9, frequency_penalty=0.5)])
async def test_thirty_two_streams_get_what_each_gets_alone(
    chat_engine: ChatEngine, chat_job: Job, sampling: ChatSampling
) -> None:
    jobs = [
        chat_job("word " * (index % 9) + str(index), sampling=sampling, seed=index, max_tokens=8 + index)
        for index in range(32)
    ]
    together = await asyncio.gather(*(run(chat_engine, job) for job in jobs))
    alone = [await run(chat_engine, job) for job in jobs]
    assert [text(events) for events in together] == [text(events) for events in alone]
    assert len({text(events) for events in alone}) > 16


async def test_choices_have_seeds_of_their_own(chat_engine: ChatEngine, chat_job: Job) -> None:
    sampling = ChatSampling(temperature=1.0)
    together = await run(chat_engine, chat_job(sampling=sampling, n=3, seed=10))
    seeds = [chat_job(seed=10).choice_seed(choice) for choice in range(3)]
    apart = [await run(chat_engine, chat_job(sampling=sampling, seed=seed)) for seed in seeds]
    assert [text(together, choice) for choice in range(3)] == [text(events) for events in apart]
    following = await run(chat_engine, chat_job(sampling=sampling, n=3, seed=11))
    assert not {text(together, choice) for choice in range(3)} & {text(following, choice) for choice in range(3)}
    assert isinstance(together[-1], ChatFinished)
    assert together[-1].usage.completion_tokens == sum(events[-1].usage.completion_tokens for events in apart)  # type: ignore[union-attr]


async def test_a_cancelled_job_frees_its_row(
    chat_engine: ChatEngine, chat_job: Job, chat_spec: Callable[..., ChatSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_cancelled = threading.Event()
    hold_tokens(monkeypatch, "batched", lambda step: step < 40 or is_cancelled.is_set())
    one_row = chat_spec("qwen", max_batch=1)
    long = chat_job(checkpoint=one_row, max_tokens=400, sampling=letters())
    waiting = asyncio.create_task(run(chat_engine, chat_job(checkpoint=one_row)))
    deltas = used = 0
    async for event in chat_engine.submit(long):
        deltas += isinstance(event, TextDelta)
        if deltas == 3:
            chat_engine.cancel(long.id)
            is_cancelled.set()
        if isinstance(event, PartialUsage):
            used = event.usage.completion_tokens
        if isinstance(event, Failed):
            assert event.code == "cancelled"
    assert 3 <= deltas <= used < 400
    assert isinstance((await waiting)[-1], ChatFinished)


async def test_an_overlong_prompt_is_refused_with_both_lengths(chat_engine: ChatEngine, chat_job: Job) -> None:
    events = await run(chat_engine, chat_job("x" * 600))
    assert isinstance(events[-1], Failed)
    assert (events[-1].code, events[-1].param) == ("context_length_exceeded", "messages")
    assert "maximum context length is 512 tokens" in events[-1].message
    prompt_tokens = 600 + await count(chat_engine, chat_job(""))
    assert f" {prompt_tokens} " in events[-1].message
    assert not any(isinstance(event, Admitted) for event in events)


async def test_an_answer_ends_where_the_context_does(chat_engine: ChatEngine, chat_job: Job) -> None:
    events = await run(chat_engine, chat_job("x" * 440, sampling=letters(), max_tokens=2**31))
    assert events[-2] == ChoiceFinished(0, "length")
    assert isinstance(events[-1], ChatFinished)
    assert events[-1].usage.prompt_tokens + events[-1].usage.completion_tokens == 512


async def test_truncation_drops_whole_turns_from_the_oldest_on(chat_engine: ChatEngine, chat_job: Job) -> None:
    turns = [{"role": role, "content": f"{i}" * 60} for i in range(9) for role in ("user", "assistant")]
    messages = ({"role": "system", "content": "Be kind."}, *turns, {"role": "user", "content": "And now?"})
    events = await run(chat_engine, chat_job(messages=messages, truncate=True, max_tokens=4))
    admitted = next(event for event in events if isinstance(event, Admitted))
    remaining = (messages[0], *messages[1 + admitted.dropped_messages :])
    assert remaining[1]["role"] == "user"
    assert await count(chat_engine, chat_job(messages=remaining)) == admitted.prompt_tokens < 512
    assert await count(chat_engine, chat_job(messages=(messages[0], *messages[admitted.dropped_messages - 1 :]))) >= 512


async def count(engine: ChatEngine, job: ChatJob) -> int:
    events = await run(engine, CountJob(job.id, job.checkpoint, job.messages))
    assert isinstance(events[-1], CountFinished)
    return events[-1].tokens


async def test_a_count_emits_started_and_can_be_cancelled(chat_engine: ChatEngine, chat_job: Job) -> None:
    job = CountJob("c", chat_job().checkpoint, chat_job().messages)
    assert [type(event) for event in await run(chat_engine, job)] == [Queued, Started, CountFinished]
    events = []
    async for event in chat_engine.submit(job):
        events.append(type(event))
        chat_engine.cancel("c")
    assert events == [Queued, Failed]


async def test_a_chat_that_exceeds_its_time_limit_fails(chat_engine: ChatEngine, chat_job: Job) -> None:
    events = await run(chat_engine, chat_job(time_limit_s=0.0))
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "timed_out"


async def test_preempted_sequences_get_the_same_text(chat_job: Job) -> None:
    roomy = ChatEngine(DEVICE, cache_bytes=2**28)
    tight = ChatEngine(DEVICE, cache_bytes=3 * 128 * 2 * 2 * 2 * 16 * 4)  # three rows of 128 tokens
    jobs = [chat_job(f"number {index}", max_tokens=70, sampling=letters()) for index in range(6)]
    assert [text(await run(roomy, job)) for job in jobs] == [
        text(events) for events in await asyncio.gather(*(run(tight, job) for job in jobs))
    ]


async def test_a_folder_without_weights_is_a_failure_of_the_checkpoint(
    chat_engine: ChatEngine, chat_job: Job, tmp_path: Path
) -> None:
    empty = ChatSpec("empty", tmp_path)
    events = await run(chat_engine, CountJob("c", empty, ({"role": "user", "content": "Hi"},)))
    assert isinstance(events[-1], Failed)
    assert (events[-1].code, events[-1].movable) == ("checkpoint_failed", "anywhere")


async def test_logprobs_are_those_of_the_bare_model(chat_engine: ChatEngine, chat_job: Job) -> None:
    job = chat_job(logprobs=True, top_logprobs=3, max_tokens=12, sampling=letters())
    events = await run(chat_engine, job)
    logprobs = [each for event in events if isinstance(event, TextDelta) for each in event.logprobs]
    assert b"".join(each.data for each in logprobs).decode() == text(events)
    tokenizer = AutoTokenizer.from_pretrained(job.checkpoint.path)
    bare = AutoModelForCausalLM.from_pretrained(job.checkpoint.path)
    prompt = tokenizer.apply_chat_template(list(job.messages), add_generation_prompt=True, return_tensors="pt")
    answer = torch.tensor([LETTER_IDS[letter] for letter in text(events)])
    logits = bare(torch.cat([prompt["input_ids"][0], answer])[None]).logits[0, -len(answer) - 1 : -1].detach()
    expected = torch.log_softmax(logits.double(), dim=-1)
    assert len(answer) == 12
    assert [each.logprob for each in logprobs] == pytest.approx(
        expected[torch.arange(len(answer)), answer].tolist(), abs=1e-4
    )
    for each, row in zip(logprobs, expected, strict=True):
        assert [top.logprob for top in each.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)


async def test_a_stop_string_ends_the_answer_before_it_shows(chat_engine: ChatEngine, chat_job: Job) -> None:
    whole = text(await run(chat_engine, chat_job(max_tokens=40, sampling=letters())))
    stop = whole[10:14]
    job = chat_job(max_tokens=40, sampling=letters(), stop=(stop, "Never written"))
    events = await run(chat_engine, job)
    assert text(events) == whole[: whole.index(stop)]
    assert events[-2] == ChoiceFinished(0, "stop", stop)
    assert isinstance(events[-1], ChatFinished)
    assert events[-1].usage.completion_tokens < 40


@pytest.mark.parametrize(
    ("asked", "stop", "tokens", "reason"),
    [
        (0, None, 1, "stop"),
        (5, None, 6, "stop"),
        (2**31, None, 12, "length"),
        (5, "a", 6, "stop"),
        (0, "b", 12, "length"),
    ],
)
async def test_an_answer_is_as_long_as_was_asked(
    chat_engine: ChatEngine, chat_job: Job, asked: int, stop: str | None, tokens: int, reason: str
) -> None:
    """As programs ask that measure: `min_tokens`, `ignore_eos`, `stop_token_ids`."""
    favourite = LETTER_IDS["a"] if stop else TOKENIZER.eos_token_id
    sampling = ChatSampling(temperature=0.0, logit_bias={favourite: 100.0}, min_tokens=asked)
    ends = frozenset({LETTER_IDS[stop]} if stop else ())
    events = await run(chat_engine, chat_job(sampling=sampling, stop_tokens=ends, max_tokens=12))
    assert isinstance(events[-1], ChatFinished)
    assert events[-1].usage.completion_tokens == tokens
    assert [event.reason for event in events if isinstance(event, ChoiceFinished)] == [reason]


async def test_one_that_never_fits_into_memory_fails_alone(chat_job: Job) -> None:
    tight = ChatEngine(DEVICE, cache_bytes=3 * 128 * 2 * 2 * 2 * 16 * 4)  # three rows of 128 tokens
    jobs = [chat_job("x" * 420), *(chat_job(f"number {index}") for index in range(3))]
    too_long, *others = [events[-1] for events in await asyncio.gather(*(run(tight, job) for job in jobs))]
    assert isinstance(too_long, Failed)
    assert too_long.code == "context_length_exceeded"
    assert "DARKROOM_CHAT_CACHE_SHARE" in too_long.message
    assert all(isinstance(event, ChatFinished) for event in others)


async def test_one_that_never_fits_is_refused_where_answers_are_written_one_at_a_time(tmp_path: Path) -> None:
    engine = ChatEngine(DEVICE, cache_bytes=128 * 2 * 2 * 16 * 4)  # keys and values of 128 tokens, in one of two layers
    spec = ChatSpec("lfm2", make_lfm2(tmp_path / "lfm2"), dtype="float32")
    assert (await engine.load(spec)).context == 128
    too_long, short = (
        ChatJob(content, spec, ({"role": "user", "content": content},), 0, 60.0, max_tokens=3)
        for content in ("x" * 130, "x")
    )
    failed = (await run(engine, too_long))[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "context_length_exceeded"
    assert isinstance((await run(engine, short))[-1], ChatFinished)


@pytest.mark.parametrize("beside", [0, 3])
async def test_what_was_admitted_keeps_its_room_when_another_checkpoint_takes_half(
    chat_engine: ChatEngine, chat_job: Job, beside: int
) -> None:
    checkpoint = await chat_engine.load(chat_job().checkpoint)
    generator, events = BatchedGenerator(checkpoint), list[ChatEvent]()
    budget = 512 * checkpoint.batching.token_bytes
    generator.set_cache_budget(budget)
    for number in range(beside):
        for sequence in build_sequences(checkpoint, chat_job(f"{number}", max_tokens=3), lambda _: None)[0]:
            generator.add(sequence)
    with torch.inference_mode():
        generator.step(1)
        for sequence in build_sequences(checkpoint, chat_job("x" * 420, sampling=letters()), events.append)[0]:
            generator.add(sequence)
        generator.set_cache_budget(budget // 4)
        while not generator.idle:
            generator.step(1)
    assert isinstance(events[-1], ChatFinished)
    assert generator.cache_budget_bytes == budget // 4


@pytest.mark.daily("1-20")
@pytest.mark.parametrize(("growth", "tokens"), [(1, 20), (3, 150)])  # with a prompt, and with tokens of answers
async def test_chats_go_on_where_the_cache_of_a_later_layer_has_no_memory_to_grow(
    chat_engine: ChatEngine, chat_job: Job, monkeypatch: pytest.MonkeyPatch, growth: int, tokens: int
) -> None:
    """The layers before it have grown already."""
    jobs = [chat_job(f"number {index}", max_tokens=tokens + index, sampling=letters()) for index in range(8)]
    roomy = ChatEngine(DEVICE, cache_bytes=2**28)
    expected = [text(await run(roomy, job)) for job in jobs]
    layers: list[KVCacheLayer] = []
    resize = KVCacheLayer.resize

    def fail_once(self: KVCacheLayer, pages: int) -> None:
        if self.is_initialized:
            layers.append(self)
            if len(layers) == 2 * growth:
                raise torch.OutOfMemoryError("CUDA out of memory")
        resize(self, pages)

    monkeypatch.setattr(KVCacheLayer, "resize", fail_once)
    together = await asyncio.gather(*(run(chat_engine, job) for job in jobs))
    assert [text(events) for events in together] == expected
    assert layers[2 * growth - 2] is not layers[2 * growth - 1], "the fault is in the second of two layers"


async def test_a_failure_before_the_first_step_fails_its_request_and_not_the_next(
    chat_engine: ChatEngine, chat_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.chat.loading.checkpoint.find_batching", fail)
        failed = (await asyncio.wait_for(run(chat_engine, chat_job()), 60))[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "out_of_memory"
    assert isinstance((await asyncio.wait_for(run(chat_engine, chat_job()), 60))[-1], ChatFinished)


async def test_checkpoints_share_the_memory_for_the_kv_cache(chat_job: Job) -> None:
    budget = 2**24
    engine = ChatEngine(DEVICE, cache_bytes=budget)
    for model, shares in (("qwen", 1), ("llama", 2)):
        assert isinstance((await run(engine, chat_job(model=model)))[-1], ChatFinished)
        budgets = [generator.cache_budget_bytes for generator in _generators(engine)]
        assert budgets == pytest.approx([budget / shares] * shares, rel=0.01)
    engine.unload_except([chat_job(model="llama").checkpoint])
    await _wait_until(lambda: len(_generators(engine)) == 1)
    assert _generators(engine)[0].cache_budget_bytes > 0.9 * budget


async def test_weights_that_the_catalog_drops_are_released_after_their_last_chat(
    chat_engine: ChatEngine, chat_job: Job
) -> None:
    job = chat_job(max_tokens=200, sampling=letters())
    weights = weakref.ref((await chat_engine.load(job.checkpoint)).model)
    answering = asyncio.create_task(run(chat_engine, job))
    await _wait_until(lambda: bool(_generators(chat_engine)))
    chat_engine.unload_except([])
    assert isinstance((await answering)[-1], ChatFinished)
    del answering
    await _wait_until(lambda: weights() is None)


def _generators(engine: ChatEngine) -> list[BatchedGenerator]:
    return list(engine._device_loop._batched.values())


async def _wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


class Panic(BaseException):
    """As libraries in Rust raise it: no Exception."""


@pytest.mark.parametrize("error", [LookupError, Panic])
@pytest.mark.parametrize(
    "place",
    [
        "pipelines.chat.engine.build_sequences", "pipelines.chat.steps.device_loop.DeviceLoop.add",
        "pipelines.chat.steps.batched.BatchedGenerator.step", "pipelines.chat.steps.decode_step._append",
    ],
)  # fmt: skip
async def test_whatever_fails_on_the_way_ends_the_job_and_no_other(
    chat_engine: ChatEngine, chat_job: Job, monkeypatch: pytest.MonkeyPatch, place: str, error: type[BaseException]
) -> None:
    def fail(*_: object) -> None:
        raise error("no such row")

    with monkeypatch.context() as patched:
        patched.setattr(place, fail)
        *_, last = await asyncio.wait_for(run(chat_engine, chat_job()), 60)
    assert isinstance(last, Failed)
    assert last.code == "engine_failed"
    assert "no such row" in (last.detail or "")
    assert isinstance((await run(chat_engine, chat_job(max_tokens=2)))[-1], ChatFinished)
