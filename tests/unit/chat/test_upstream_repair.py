"""Calls, arguments and reasons as servers send them a little otherwise, brought to OpenAI's form."""

import json
from typing import Any

import pytest

from server.flows.chat.upstream_repair import StreamRepair, as_chunks, repaired_completion

ROME, OSLO = '{"city": "Rome"}', '{"city": "Oslo"}'


def piece(arguments: Any = "", name: str | None = None, **fields: Any) -> dict[str, Any]:
    return {**fields, "function": {"name": name, "arguments": arguments}}


def calls_of(*pieces: Any, choice: int = 0) -> list[tuple[str, str]]:
    """Fold the repaired pieces as OpenAI's SDK does: by their index alone. Return names and arguments."""
    repair = StreamRepair()
    folded: dict[int, dict[str, str]] = {}
    for each in pieces:
        (sent,) = repair.chunk({"choices": [{"index": choice, "delta": {"tool_calls": [each]}}]})["choices"]
        (made,) = sent["delta"]["tool_calls"]
        call = folded.setdefault(made["index"], {"id": "", "name": "", "arguments": ""})
        call["id"] += made.get("id") or ""
        call["name"] += made["function"].get("name") or ""
        call["arguments"] += made["function"]["arguments"]
    assert [*folded] == [*range(len(folded))]
    assert len({call["id"] for call in folded.values()}) == len(folded)
    assert all(call["id"] for call in folded.values() if call["name"])
    return [(call["name"], call["arguments"]) for call in folded.values()]


TWO = [("look", ROME), ("look", OSLO)]


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([piece(ROME, "look", id="a", index=0), piece(OSLO, "look", id="b", index=1)], id="as OpenAI's"),
        pytest.param([piece(ROME, "look", id="a"), piece(OSLO, "look", id="b")], id="no index"),
        pytest.param([piece(ROME, "look", id="a", index=0), piece(OSLO, "look", id="b", index=0)], id="index 0 twice"),
        pytest.param([piece(ROME, "look", index=0), piece(OSLO, "look", index=1)], id="no ids"),
        pytest.param([piece(ROME, "look"), piece(OSLO, "look")], id="neither"),
        pytest.param([piece(ROME, "look", id="a", index=0), piece(OSLO, "look", id="a", index=1)], id="one id twice"),
        pytest.param([piece(json.loads(ROME), "look"), piece(json.loads(OSLO), "look")], id="objects"),
        pytest.param(
            [piece("", "look", id="a"), piece(ROME[:5]), piece(ROME[5:]), piece("", "look", id="b"), piece(OSLO)],
            id="no index, in pieces",
        ),
        pytest.param(
            [
                piece(ROME[:5], "look", id="a", index=0),
                piece(ROME[5:], "look", id="a", index=0),
                piece(OSLO[:5], "look", id="b", index=0),
                piece(OSLO[5:], "look", id="b", index=0),
            ],
            id="ids and names with every piece",
        ),
        pytest.param(
            [piece(ROME[:5], "look", index=0), piece(ROME[5:], "look", index=0), piece(OSLO, "look", index=0)],
            id="names with every piece, no ids",
        ),
        pytest.param(
            [
                piece("", "look", id="a", index=0),
                piece("", "look", id="b", index=1),
                piece(ROME, index=0),
                piece(OSLO, index=1),
            ],
            id="interleaved",
        ),
        pytest.param(
            [piece("", "look", id="a"), piece("", "look", id="b"), piece(ROME, id="a"), piece(OSLO, id="b")],
            id="interleaved by ids",
        ),
        pytest.param(
            [piece("", id="a"), piece(ROME[:5]), piece(ROME[5:], "look"), piece(OSLO, "look", id="b")],
            id="the name comes late",
        ),
        pytest.param([piece(ROME, "look", id="", index=None), piece(OSLO, "look", id="", index=None)], id="empty ids"),
    ],
)
def test_two_calls_stay_apart(pieces: list[Any]) -> None:
    assert calls_of(*pieces) == TWO
    assert calls_of(*pieces, choice=1) == TWO


def test_a_new_name_opens_a_call() -> None:
    assert calls_of(piece("{}", "look"), piece("{}", "draw")) == [("look", "{}"), ("draw", "{}")]


def test_an_answer_that_ends_with_calls_says_so() -> None:
    repair = StreamRepair()
    repair.chunk({"choices": [{"index": 1, "delta": {"tool_calls": [piece("{}", "look")]}}]})
    ends = [{"index": index, "delta": {}, "finish_reason": reason} for index, reason in ((0, "stop"), (1, "stop"))]
    ends.append({"index": 1, "delta": {}, "finish_reason": "length"})
    reasons = [choice["finish_reason"] for choice in repair.chunk({"choices": ends})["choices"]]
    assert reasons == ["stop", "tool_calls", "length"]


@pytest.mark.parametrize("chunk", [{}, {"choices": "none"}, {"choices": [3, {"delta": None}]}, {"usage": {}}])
def test_what_has_another_shape_is_left_alone(chunk: dict[str, Any]) -> None:
    assert StreamRepair().chunk(chunk) == chunk
    assert repaired_completion(chunk) == chunk


def test_calls_of_custom_tools_are_left_alone() -> None:
    call = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "dial", "input": "1"}}
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    assert StreamRepair().chunk(chunk) == chunk


def test_a_whole_completion_is_repaired_too() -> None:
    calls = [piece({"city": "Rome"}, "look"), {**piece(OSLO, "look", id="b"), "type": None}]
    body = {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "stop"}]}
    (choice,) = repaired_completion(body)["choices"]
    first, second = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert (first["id"][:5], first["type"], first["function"]) == (
        "call_",
        "function",
        {"name": "look", "arguments": ROME},
    )
    assert second == {"id": "b", "type": "function", "function": {"name": "look", "arguments": OSLO}}


def test_an_answer_that_came_whole_becomes_a_stream() -> None:
    message = {"role": "assistant", "content": "hi"}
    body = {"id": "c", "object": "chat.completion", "choices": [{"message": message, "finish_reason": "stop"}]}
    first, last = as_chunks({**body, "usage": {"prompt_tokens": 1}})
    assert first == {
        "id": "c",
        "object": "chat.completion.chunk",
        "choices": [{"delta": message, "finish_reason": "stop"}],
    }
    assert (last["choices"], last["usage"]) == ([], {"prompt_tokens": 1})


def test_what_openais_schema_requires_is_there() -> None:
    (choice,) = repaired_completion({"choices": [{"index": 0, "message": {"role": "assistant"}}]})["choices"]
    message = {"role": "assistant", "content": None, "refusal": None}
    assert choice == {"index": 0, "logprobs": None, "message": message, "finish_reason": "stop"}
    (choice,) = repaired_completion({"choices": [{"logprobs": {}, "message": {"refusal": "no"}}]})["choices"]
    assert (choice["logprobs"], choice["message"]["refusal"]) == ({}, "no")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [('{"city": "Ro', "length"), ('{"city"', "length"), ('{"city": "Rome"}', "tool_calls"), ("", "tool_calls"),
     ("city: Rome", "tool_calls")],
)  # fmt: skip
def test_a_call_that_was_cut_is_not_complete(arguments: str, reason: str) -> None:
    sent = piece(arguments, "look")
    for said in ("stop", "tool_calls"):
        repair = StreamRepair()
        repair.chunk({"choices": [{"index": 0, "delta": {"tool_calls": [sent]}}]})
        (end,) = repair.chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": said}]})["choices"]
        body = {"choices": [{"message": {"content": None, "tool_calls": [sent]}, "finish_reason": said}]}
        (whole,) = repaired_completion(body)["choices"]
        assert end["finish_reason"] == whole["finish_reason"] == reason


@pytest.mark.parametrize(
    ("sent", "reason"),
    [(None, "stop"), ("", "stop"), ("stop", "stop"), ("eos_token", "stop"), ("end_turn", "stop"),
     ("MAX_TOKENS", "length"), ("max_tokens", "length"), ("model_length", "length"),
     ("content_filter", "content_filter"), ("own", "own")],
)  # fmt: skip
def test_an_answer_always_says_why_it_ended(sent: str | None, reason: str) -> None:
    head = {"id": "c", "model": "m"}
    repair = StreamRepair()
    chunks = [repair.chunk({**head, "choices": [{"index": 0, "delta": {"content": "hi"}}], "usage": None})]
    if sent:
        chunks.append(repair.chunk({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": sent}]}))
    chunks += repair.ends()
    assert [each["choices"][0].get("finish_reason") for each in chunks] == [None, reason]
    assert all(each.items() >= head.items() for each in chunks)
    (whole,) = repaired_completion({"choices": [{"message": {"content": "hi"}, "finish_reason": sent}]})["choices"]
    assert whole["finish_reason"] == reason


@pytest.mark.parametrize(
    ("arguments", "reason"), [(ROME, "tool_calls"), ('{"city": "Ro', "length"), ("", "tool_calls")]
)
@pytest.mark.parametrize("sent", [None, "tool_use", "stop"])
def test_an_answer_with_calls_says_why_it_ended(arguments: str, reason: str, sent: str | None) -> None:
    repair = StreamRepair()
    chunks = [repair.chunk({"choices": [{"index": 0, "delta": {"tool_calls": [piece(arguments, "look", id="a")]}}]})]
    chunks += [repair.chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": sent}]})] if sent else repair.ends()
    pieces = [each for chunk in chunks for each in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(each["function"]["arguments"] for each in pieces) == (arguments or "{}")
    assert chunks[-1]["choices"][0]["finish_reason"] == reason
    body = {"choices": [{"message": {"tool_calls": [piece(arguments, "look", id="a")]}, "finish_reason": sent}]}
    (whole,) = repaired_completion(body)["choices"]
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == (arguments or "{}")
    assert whole["finish_reason"] == reason


def test_a_call_whose_tokens_ran_out_before_its_arguments_has_none() -> None:
    sent = {"tool_calls": [piece("", "look", id="a")]}
    repair = StreamRepair()
    repair.chunk({"choices": [{"index": 0, "delta": sent}]})
    (end,) = repair.chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})["choices"]
    (whole,) = repaired_completion({"choices": [{"message": sent, "finish_reason": "length"}]})["choices"]
    assert end["delta"] == {}
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == ""


def test_reasoning_in_details_alone_is_read() -> None:
    details = [{"type": "reasoning.text", "text": "I "}, {"type": "reasoning.summary", "summary": "think."}]
    hidden = [{"type": "reasoning.encrypted", "data": "xyz"}]
    for sent, read in ((details, "I think."), (hidden, None)):
        message = {"content": "hi", "reasoning_details": sent}
        (streamed,) = StreamRepair().chunk({"choices": [{"index": 0, "delta": message}]})["choices"]
        (whole,) = repaired_completion({"choices": [{"message": message}]})["choices"]
        assert streamed["delta"].get("reasoning_content") == whole["message"].get("reasoning_content") == read
    both = {"reasoning": "I think.", "reasoning_details": details}
    (streamed,) = StreamRepair().chunk({"choices": [{"index": 0, "delta": both}]})["choices"]
    assert streamed["delta"] == both
