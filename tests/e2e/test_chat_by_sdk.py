"""Chats through OpenAI's Python SDK: with and without streaming, one and many at a time."""

import concurrent.futures
import itertools
import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.support.chat_servers import CONTEXT, ENDLESS, LETTERS
from tests.support.harness import Server

HELLO = [{"role": "user", "content": "hello"}]
GREEDY: dict[str, Any] = {"model": "small", "messages": HELLO, "temperature": 0, "max_tokens": 24}


def complete(server: Server, **fields: Any) -> ChatCompletion:
    completion: ChatCompletion = server.openai().chat.completions.create(**{**GREEDY, **fields})
    return completion


def text_of(answer: ChatCompletion) -> str:
    text = answer.choices[0].message.content
    assert text is not None
    return text


def streamed(server: Server, **fields: Any) -> tuple[str, str]:
    """The text of a stream, and why it ended."""
    chunks = list(server.openai().chat.completions.create(**{**GREEDY, **fields, "stream": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    return text, chunks[-1].choices[0].finish_reason


def test_an_answer_has_everything_that_openais_has(chat: Server) -> None:
    answer = complete(chat, **ENDLESS)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model, answer.service_tier) == ("chat.completion", "small", "default")
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens == 24
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


def test_the_prompt_is_counted_exactly(chat: Server) -> None:
    """The tiny tokenizer knows bytes alone, so each byte more is a token more."""
    counts = [complete(chat, messages=[{"role": "user", "content": text}]).usage for text in ("a", "abc", "ö")]
    first, three, umlaut = (count.prompt_tokens for count in counts if count)
    assert (three - first, umlaut - first) == (2, 1)


def test_a_stream_is_the_same_answer_in_pieces(chat: Server) -> None:
    unstreamed = complete(chat)
    assert streamed(chat) == (text_of(unstreamed), unstreamed.choices[0].finish_reason)


def test_the_frames_are_exactly_openais(chat: Server) -> None:
    with chat.http() as client:
        body = {**GREEDY, **ENDLESS, "stream": True, "stream_options": {"include_usage": True}, "n": 2}
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.text.endswith("data: [DONE]\n\n")
    frames = [line for line in answer.text.split("\n\n")[:-2] if not line.startswith(":")]
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert all(frame.startswith("data: {") and "\n" not in frame for frame in frames)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    for index in (0, 1):
        own = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
        assert all("role" not in choice["delta"] for choice in own[1:])
        assert [choice["finish_reason"] for choice in own[:-1]] == [None] * (len(own) - 1)
        assert (own[-1]["delta"], own[-1]["finish_reason"]) == ({}, "length")
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 48


def test_the_sdks_stream_helper_follows(chat: Server) -> None:
    text = ""
    with chat.openai().chat.completions.stream(**GREEDY) as stream:
        for event in stream:
            if event.type == "content.delta":
                text += event.delta
                assert event.snapshot == text
    assert text == text_of(complete(chat))


def test_a_seed_repeats_its_choices_which_differ(chat: Server) -> None:
    fields = {"temperature": 1.5, "n": 3, "seed": 11, **ENDLESS}
    first, again = complete(chat, **fields), complete(chat, **fields)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 3
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert complete(chat, **{**fields, "n": 1}).choices[0].message.content == texts[0]
    following = complete(chat, **{**fields, "seed": 12})
    assert not {choice.message.content for choice in following.choices} & set(texts)


def test_logprobs_are_of_the_sampled_tokens(chat: Server) -> None:
    answer = complete(chat, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    data = b"".join(bytes(token.bytes or b"") for token in logprobs.content)
    assert data.decode(errors="replace") == text_of(answer)
    for token in logprobs.content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == max(top.logprob for top in token.top_logprobs)
        assert token.logprob == token.top_logprobs[0].logprob  # greedy decoding takes the most likely


def test_a_stop_string_ends_the_answer_before_it(chat: Server) -> None:
    text = text_of(complete(chat, **LETTERS))
    stop = text[4:6]
    expected = text[: text.index(stop)]
    answer = complete(chat, stop=["NEVER", stop], **LETTERS)
    assert (text_of(answer), answer.choices[0].finish_reason) == (expected, "stop")
    assert streamed(chat, stop=stop, **LETTERS) == (expected, "stop")


def test_a_bias_forbids_and_forces_tokens(chat: Server) -> None:
    forced = text_of(complete(chat, logit_bias={"70": 100}, max_tokens=5))
    assert forced == forced[0] * 5
    assert forced[0] not in text_of(complete(chat, logit_bias={"70": -100}))


def test_the_limit_has_two_names(chat: Server) -> None:
    for fields in ({"max_tokens": 3}, {"max_tokens": openai.omit, "max_completion_tokens": 3}):
        usage = complete(chat, **ENDLESS, **fields).usage
        assert usage is not None
        assert usage.completion_tokens == 3
    usage = complete(chat, max_tokens=100_000, **ENDLESS).usage
    assert usage is not None
    assert usage.total_tokens == CONTEXT  # reduced to what the context leaves


def test_models_are_found_by_name_alias_and_default(chat: Server) -> None:
    assert complete(chat, model="gpt-4o").model == "small"
    with chat.http() as client:
        answer = client.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 1})
    assert answer.json()["model"] == "small"
    listed = {model.id: model for model in chat.openai().models.list()}
    told = listed["small"].model_extra or {}
    assert {"group": "chat", "tools": True, "vision": False}.items() <= told.items()
    assert chat.openai().models.retrieve("plain").owned_by == "darkroom"


def tokens_of(choice: Any) -> list[Any]:
    assert choice.logprobs is not None
    return list(choice.logprobs.content or [])


def is_clear(token: Any) -> bool:
    """Whether its lead over the second most likely token is more than rounding, which depends on the batch."""
    first, second = token.top_logprobs
    return bool(first.logprob - second.logprob > 1e-4)


def test_32_concurrent_streams_have_the_tokens_of_single_calls(chat: Server) -> None:
    prompts = [[{"role": "user", "content": f"{i} " + "word " * (i % 9)}] for i in range(32)]
    fields: dict[str, Any] = {**GREEDY, "logprobs": True, "top_logprobs": 2}

    def stream(messages: Any) -> list[Any]:
        chunks = chat.openai().chat.completions.create(**{**fields, "messages": messages, "stream": True})
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.logprobs]
        return [token.bytes for choice in choices for token in tokens_of(choice)]

    single = [tokens_of(complete(chat, **{**fields, "messages": messages}).choices[0]) for messages in prompts]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        concurrent_ones = list(pool.map(stream, prompts))
    compared = 0
    for expected, tokens in zip(single, concurrent_ones, strict=True):
        clear = [token.bytes for token in itertools.takewhile(is_clear, expected)]
        assert tokens[: len(clear)] == clear
        compared += len(clear)
    assert compared > 500  # of at most 768


def test_tokens_are_counted_by_key_and_not_billed(chat: Server) -> None:
    secret = chat.new_key("counted", groups=["chat"])
    for _ in range(2):
        usage = chat.openai(secret).chat.completions.create(**GREEDY).usage
    assert usage is not None
    ledger = chat.darkroom("ledger").stdout
    counted = f"│ 2     │ {2 * usage.prompt_tokens}"
    assert any(counted in line and "small" in line for line in ledger.splitlines()), ledger
    assert "chatcmpl-" not in ledger
    with chat.http() as client:
        metrics = client.get("/metrics").text
    assert 'darkroom_chats_total{model="small",outcome="finished"}' in metrics
    assert 'darkroom_chat_tokens_total{kind="completion",model="small"}' in metrics
    assert "small *" in chat.darkroom("models").stdout


def test_a_key_needs_the_models_group(chat: Server) -> None:
    secret = chat.new_key("chat only", groups=["chat"])
    assert chat.openai(secret).chat.completions.create(**GREEDY).choices
    with pytest.raises(openai.PermissionDeniedError) as raised:
        chat.openai(secret).chat.completions.create(**{**GREEDY, "model": "plain"})
    assert raised.value.code == "group_mismatch"
