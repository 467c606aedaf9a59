"""A conversation as four protocols tell it: written once, in neutral words, and turned into the body of each.

A conversation is a list of turns, each a function of the protocol: it returns the messages that the turn is there. None
of a protocol that can't say it.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

Json = dict[str, Any]
Part = Callable[[str, str], Json]  # by the protocol and the role
Turn = Callable[[str], list[Json]]
PROTOCOLS = ("chat", "responses", "messages", "gemini")


def text(words: str) -> Part:
    def write(protocol: str, role: str) -> Json:
        if protocol == "gemini":
            return {"text": words}
        said = "output_text" if role == "assistant" else "input_text"
        return {"type": said if protocol == "responses" else "text", "text": words}

    return write


def image(url: str) -> Part:
    media_type, _, data = url.removeprefix("data:").partition(";base64,")

    def write(protocol: str, role: str) -> Json:
        return {
            "chat": {"type": "image_url", "image_url": {"url": url}},
            "responses": {"type": "input_image", "image_url": url},
            "messages": {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}},
            "gemini": {"inlineData": {"mimeType": media_type, "data": data}},
        }[protocol]

    return write


def audio(protocol: str, role: str) -> Json:
    if protocol == "gemini":
        return {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}}
    return {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


def pdf(protocol: str, role: str) -> Json:
    data = {"media_type": "application/pdf", "data": "AAAA"}
    return {
        "chat": {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
        "responses": {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
        "messages": {"type": "document", "title": "a.pdf", "source": {"type": "base64", **data}},
        "gemini": {"inlineData": {"mimeType": "application/pdf", "displayName": "a.pdf", "data": "AAAA"}},
    }[protocol]


def block(**fields: Any) -> Part:
    """A block in the words of Anthropic's protocol, wherever it is sent."""
    return lambda protocol, role: fields


def user(*parts: Part, name: str | None = None) -> Turn:
    def write(protocol: str) -> list[Json]:
        content = [part(protocol, "user") for part in parts]
        if protocol == "gemini":
            return [{"role": "user", "parts": content}]
        named = {"name": name} if name and protocol == "chat" else {}
        return [{"role": "user", **named, "content": content}]

    return write


def instructions(*parts: Part, role: str = "system") -> Turn:
    def write(protocol: str) -> list[Json]:
        content = [part(protocol, "system") for part in parts]
        return [{"role": role, "parts" if protocol == "gemini" else "content": content}]

    return write


def call(name: str, call_id: str | None = None, **arguments: Any) -> Json:
    return {"name": name, "id": call_id, "arguments": arguments}


def answer(
    *parts: Part,
    calls: Sequence[Json] = (),
    thoughts: Sequence[str] = (),
    refusal: str | None = None,
    signature: str = "",
) -> Turn:
    """An answer of an earlier round: its thoughts, what it said, its calls."""

    def write(protocol: str) -> list[Json]:
        content = [part(protocol, "assistant") for part in parts]
        return {"chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini}[protocol](content)

    def _chat(content: list[Json]) -> list[Json]:
        made = [
            {
                **_id(one),
                "type": "function",
                "function": {"name": one["name"], "arguments": json.dumps(one["arguments"])},
            }
            for one in calls
        ]
        thinking = [{"type": "thinking", "thinking": one} for one in thoughts]
        said = [*(thinking if len(thoughts) > 1 else []), *content]
        others = {"reasoning_content": thoughts[0]} if len(thoughts) == 1 else {}
        others |= {"refusal": refusal} if refusal else {}
        return [{"role": "assistant", "content": said or None, **others, **({"tool_calls": made} if made else {})}]

    def _responses(content: list[Json]) -> list[Json]:
        refused = [{"type": "refusal", "refusal": refusal}] if refusal else []
        items: list[Json] = [
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": one}]}
            for one in thoughts
        ]
        if content or refused or not (calls or thoughts):
            items.append({"role": "assistant", "content": [*content, *refused]})
        return items + [
            {
                "type": "function_call",
                "call_id": one["id"],
                "name": one["name"],
                "arguments": json.dumps(one["arguments"]),
            }
            for one in calls
        ]

    def _messages(content: list[Json]) -> list[Json]:
        thinking = [{"type": "thinking", "thinking": one, "signature": signature} for one in thoughts]
        refused = [{"type": "refusal", "refusal": refusal}] if refusal else []
        made = [{"type": "tool_use", "id": one["id"], "name": one["name"], "input": one["arguments"]} for one in calls]
        return [{"role": "assistant", "content": [*thinking, *content, *refused, *made]}]

    def _gemini(content: list[Json]) -> list[Json]:
        signed = {"thoughtSignature": signature} if signature else {}
        thinking = [{"text": one, "thought": True, **signed} for one in thoughts]
        made = [{"functionCall": {"name": one["name"], **_id(one), "args": one["arguments"]}} for one in calls]
        return [{"role": "model", "parts": [*thinking, *content, *made]}]

    return write


def result(*parts: Part, of: str | None = None, name: str = "look", failed: str | None = None) -> Json:
    """What a tool returned: the id of its call, or only the name of its function."""
    return {"parts": parts, "id": of, "name": name, "failed": failed}


def results(*told: Json, then: Sequence[Part] = ()) -> Turn:
    """The results of tools; `then` is what the user says in the same turn."""

    def write(protocol: str) -> list[Json]:
        spoken = [part(protocol, "user") for part in then]
        if protocol == "chat":
            made = [_chat_result(one, [part(protocol, "tool") for part in one["parts"]]) for one in told]
            return [*made, *([{"role": "user", "content": spoken}] if spoken else [])]
        if protocol == "responses":
            items = [
                {
                    "type": "function_call_output",
                    "call_id": one["id"],
                    "output": f"error: {one['failed']}"
                    if one["failed"]
                    else [part(protocol, "tool") for part in one["parts"]],
                }
                for one in told
            ]
            return [*items, *([{"role": "user", "content": spoken}] if spoken else [])]
        if protocol == "messages":
            return [{"role": "user", "content": [*map(_messages_result, told), *spoken]}]
        return [{"role": "user", "parts": [*map(_gemini_result, told), *spoken]}]

    return write


def _id(one: Json) -> Json:
    return {"id": one["id"]} if one["id"] else {}


def _chat_result(one: Json, content: list[Json]) -> Json:
    said = f"error: {one['failed']}" if one["failed"] else content
    if one["id"]:
        return {"role": "tool", "tool_call_id": one["id"], "content": said}
    return {"role": "function", "name": one["name"], "content": said}


def _messages_result(one: Json) -> Json:
    content = one["failed"] or [part("messages", "tool") for part in one["parts"]]
    failed = {"is_error": True} if one["failed"] else {}
    return {"type": "tool_result", "tool_use_id": one["id"], "content": content, **failed}


def _gemini_result(one: Json) -> Json:
    written = [part("gemini", "tool") for part in one["parts"]]
    said = [part["text"] for part in written if "text" in part]
    output = {"output": said[0] if len(said) == 1 else said} if said else {}
    response = {"error": one["failed"]} if one["failed"] else output
    others = [part for part in written if "text" not in part]
    more = {"parts": others} if others else {}
    return {"functionResponse": {**_id(one), "name": one["name"], "response": response, **more}}


def told(protocol: str, conversation: Sequence[Turn], model: str) -> tuple[str, Json]:
    """Return the path and the body of a conversation with a model."""
    said = [message for turn in conversation for message in turn(protocol)]
    bodies: dict[str, tuple[str, Json]] = {
        "chat": ("/v1/chat/completions", {"model": model, "messages": said}),
        "responses": ("/v1/responses", {"model": model, "input": said}),
        "messages": ("/v1/messages", {"model": model, "max_tokens": 9, "messages": said}),
        "gemini": (f"/v1beta/models/{model}:generateContent", {"contents": said}),
    }
    return bodies[protocol]
