"""The prompt of the chat model for a chain of responses, and the images that can be edited. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.protocol.chat import Message
from server.accounts.response_items import StoredItem
from server.flows.chat.shown_images import with_tool_images_as_user
from server.flows.responses.hosted_items import Exchange, read_exchange
from server.flows.responses.items import parts_of, read_summary
from server.flows.responses.tools import IMAGE_FUNCTION, function_name
from server.schemas.chat_messages import custom_arguments
from server.schemas.response_object import Json

SUMMARY = "Summary of our conversation so far:\n"
IMAGE_TOOL_SUCCESS = "The picture is done."  # the image tool's result, as the model reads it
IMAGE_TOOL_FAILURE = "error: The picture was not drawn."


@dataclass(frozen=True, slots=True)
class ImageRef:
    """An image of the chain: the name of a stored file, or the URL or data URI that was sent."""

    source: str
    is_file: bool


@dataclass(frozen=True, slots=True)
class Context:
    """The conversation as OpenAI's chat messages, and the images that its image_url parts show, in order."""

    messages: tuple[Json, ...]
    images: tuple[ImageRef, ...]


def build_context(items: Iterable[StoredItem], instructions: str | None, *, tools: bool, vision: bool) -> Context:
    """Build the context of these items. For a model that does not call tools or see images, text stands for calls and
    images."""
    messages: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    images: list[ImageRef] = []
    thoughts = ""  # that belong to the message behind them
    for item in items:
        body, count = item.body, len(messages)
        match body["type"]:
            case "reasoning":
                thoughts += _thoughts(body)
            case "message":
                shown = images_of(item)
                images += shown if vision else []
                messages.append({"role": body["role"], "content": _content(body["content"], vision=vision)})
            case "function_call":
                name = function_name(body["name"], body.get("namespace"))
                _add_call(messages, body["call_id"], name, body["arguments"])
            case "custom_tool_call":
                name = function_name(body["name"], body.get("namespace"))
                _add_call(messages, body["call_id"], name, custom_arguments(body["input"]))
            case "function_call_output" | "custom_tool_call_output":
                output = body["output"]
                images += images_of(item) if vision else []
                text = output if isinstance(output, str) else _content(output, vision=vision)
                messages.append({"role": "tool", "tool_call_id": body["call_id"], "content": text})
            case "compaction":
                messages.append({"role": "user", "content": SUMMARY + read_summary(body["encrypted_content"])})
            case "image_generation_call" if tools:
                add_image_call(messages, body["id"], image_call_arguments(body), _image_call_result(body))
            case "image_generation_call":
                messages.append({"role": "assistant", "content": "[image]"})
            case _ if exchange := read_exchange(body):
                _add_exchange(messages, exchange, tools=tools)
        if body["type"] != "reasoning":
            _add_thoughts(messages, min(count, len(messages) - 1), thoughts)
            thoughts = ""
    return Context(tuple(with_tool_images_as_user(messages)), tuple(images))


def with_newest_images(context: Context, count: int) -> Context:
    """Return the context with at most this many of its images, the newest; text stands for the older ones."""
    left_out = max(0, len(context.images) - count)
    messages = []
    for message in context.messages:
        if left_out and isinstance(content := message.get("content"), list):
            shown = [index for index, part in enumerate(content) if part["type"] == "image_url"][:left_out]
            left_out -= len(shown)
            parts = [{"type": "text", "text": "[image]"} if i in shown else part for i, part in enumerate(content)]
            message = {**message, "content": parts}
        messages.append(message)
    return Context(tuple(messages), context.images[max(0, len(context.images) - count) :])


def with_sources(messages: Iterable[Json], sources: Iterable[str]) -> tuple[Json, ...]:
    """Return the messages with their images by these URLs, in order."""
    left = iter(sources)

    def named(part: Json) -> Json:
        return {**part, "image_url": {"url": next(left)}} if part["type"] == "image_url" else part

    return tuple(
        {**message, "content": [named(part) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    )


def add_image_call(messages: list[Json], call_id: str, arguments: str, result: str) -> None:
    """Append a call of the image tool and its result."""
    _add_call(messages, call_id, IMAGE_FUNCTION, arguments)
    messages.append({"role": "tool", "tool_call_id": call_id, "content": result})


def _add_exchange(messages: list[Json], exchange: Exchange, *, tools: bool) -> None:
    if not tools:
        messages.append({"role": "assistant", "content": exchange.result or exchange.arguments})
        return
    if exchange.name is not None:
        _add_call(messages, exchange.call_id, exchange.name, exchange.arguments)
    if exchange.result is not None:
        messages.append({"role": "tool", "tool_call_id": exchange.call_id, "content": exchange.result})


def image_call_arguments(body: Any) -> str:
    """Return the arguments of an image_generation_call item, as JSON."""
    prompt = body.get("revised_prompt") or ""
    return json.dumps({"prompt": prompt, "action": body.get("action") or "generate"}, ensure_ascii=False)


def newest_images(items: Sequence[StoredItem]) -> Iterator[ImageRef]:
    """Yield the images that were drawn or sent, the newest first."""
    return (image for item in reversed(items) for image in reversed(images_of(item)))


def images_of(item: StoredItem) -> list[ImageRef]:
    """Return the images of one item."""
    if item.image is not None:
        return [ImageRef(item.image, is_file=True)]
    if item.body["type"] == "image_generation_call" and "image_url" in item.body:
        return [ImageRef(item.body["image_url"], is_file=False)]
    return [image_of_part(part) for part in parts_of(item) if part["type"] == "input_image"]


def image_of_part(part: Mapping[str, Any]) -> ImageRef:
    """Return the image of a stored part."""
    return ImageRef(part.get("file") or part["image_url"], is_file="file" in part)


def last_user_text(messages: Sequence[Message]) -> str:
    """Return the text of the last user message, without marks for images; "" if there is none."""
    for message in reversed(messages):
        if message["role"] == "user":
            content = message["content"]
            if isinstance(content, list):
                content = " ".join(part["text"] for part in content if part["type"] == "text")
            return str(content).replace("[image]", "").strip()
    return ""


def _image_call_result(body: Any) -> str:
    if error := body.get("error"):
        return f"error: {error['message']}"
    return IMAGE_TOOL_FAILURE if body.get("status") == "failed" else IMAGE_TOOL_SUCCESS


def _thoughts(body: Mapping[str, Any]) -> str:
    """Return the text of a reasoning item, or what it says in short of one whose text its server has kept."""
    parts = body.get("content") or body.get("summary") or ()
    return "\n".join(str(part["text"]) for part in parts if part.get("text"))


def _add_thoughts(messages: list[Json], index: int, thoughts: str) -> None:
    """Add thoughts to the message that came of them, if the assistant's."""
    if thoughts and index >= 0 and messages[index]["role"] == "assistant":
        before = messages[index].get("reasoning_content", "")
        messages[index] = {**messages[index], "reasoning_content": before + thoughts}


def _content(parts: Sequence[Json], *, vision: bool) -> str | list[Json]:
    if vision and any(part["type"] == "input_image" for part in parts):
        return [_chat_part(part) for part in parts]
    return " ".join("[image]" if part["type"] == "input_image" else _text(part) for part in parts)


def _chat_part(part: Json) -> Json:
    if part["type"] == "input_image":
        return {"type": "image_url", "image_url": {"url": "picture:"}}
    return {"type": "text", "text": _text(part)}


def _text(part: Json) -> str:
    return str(part.get("text") or part.get("refusal") or "")


def _add_call(messages: list[Json], call_id: str, name: str, arguments: str) -> None:
    """Add a call to the last message of the assistant, since parallel calls belong to one message."""
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant":
        messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), call]}
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
