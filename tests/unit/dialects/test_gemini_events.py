"""A chat's events as candidates, whole and in parts; and what the policy refuses."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from pydantic import TypeAdapter

from pipelines.protocol.chat import (
    Admitted,
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from server.dialects.gemini.answers import SIGNATURE, CandidateWriter, GenerateAnswer, collect
from server.dialects.gemini.errors import error_answer
from server.errors import ImageModerationBlocked, ModerationBlocked
from server.flows.chat.events import AnswerEvent, ImageDelta
from server.http.chat_delivery import write_each

ANSWER: TypeAdapter[Any] = TypeAdapter(GenerateAnswer)


async def play(items: Sequence[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


async def chunks(*events: AnswerEvent) -> list[dict[str, Any]]:
    found = [chunk async for chunk in write_each(CandidateWriter("r1", "m").write, play((Admitted(3), *events)))]
    for chunk in found:
        ANSWER.validate_python(chunk)
    return found


async def test_texts_are_joined_and_thoughts_and_calls_stay_apart() -> None:
    parts = await chunks(
        ReasoningDelta(0, "h"),
        ReasoningDelta(0, "m"),
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
        ToolCallDelta(0, 0, "", "c1", "look"),
        ToolCallDelta(0, 0, '{"a": 1}'),
        ChoiceFinished(0, "tool_calls"),
        ChatFinished(ChatUsage(3, 9, 4), 0.1),
    )
    whole = await collect(play(parts))
    ANSWER.validate_python(whole)
    (candidate,) = whole["candidates"]
    assert candidate["content"]["parts"] == [
        {"text": "hm", "thought": True, "thoughtSignature": SIGNATURE},
        {"text": "Hello"},
        {"functionCall": {"id": "c1", "name": "look", "args": {"a": 1}}, "thoughtSignature": SIGNATURE},
    ]
    assert candidate["finishReason"] == "STOP"
    usage = whole["usageMetadata"]
    assert (usage["promptTokenCount"], usage["candidatesTokenCount"], usage["thoughtsTokenCount"]) == (3, 5, 4)
    assert usage["totalTokenCount"] == 12
    assert [chunk["candidates"][0].get("finishReason") for chunk in parts][-2:] == [None, "STOP"]


async def test_each_image_is_a_candidate() -> None:
    whole = await collect(
        play(
            await chunks(
                ImageDelta(0, "AAAA", "image/png"),
                ChoiceFinished(0, "stop"),
                ImageDelta(1, "BBBB", "image/png"),
                ChoiceFinished(1, "length"),
                ChatFinished(ChatUsage(1, 512), 0.1),
            )
        )
    )
    assert [one["content"]["parts"][0]["inlineData"]["data"] for one in whole["candidates"]] == ["AAAA", "BBBB"]
    assert [one["finishReason"] for one in whole["candidates"]] == ["STOP", "MAX_TOKENS"]
    assert whole["usageMetadata"]["candidatesTokensDetails"] == [{"modality": "IMAGE", "tokenCount": 512}]


def test_a_refusal_of_the_policy_is_an_answer_without_an_image() -> None:
    status, body = error_answer(ImageModerationBlocked("no", "input", ["x"]))
    assert (status, body["promptFeedback"]["blockReason"]) == (200, "IMAGE_SAFETY")
    status, body = error_answer(ModerationBlocked("no", "output", ["x"]))
    assert (status, body["candidates"][0]["finishReason"]) == (200, "SAFETY")
