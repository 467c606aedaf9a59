"""The prompt of the chat model for a chain of responses, and the images that can be edited. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.protocol.chat import Message
from server.accounts.response_items import StoredItem
from server.conversation.blocks import json_text
from server.conversation.turns import MARK, Block, Call, Image, Result, Turn, write
from server.flows.chat.shown_images import replace_images, with_tool_images_as_user
from server.flows.responses.items import parts_of, read_summary
from server.flows.responses.tools import IMAGE_FUNCTION, function_name
from server.schemas.chat_messages import custom_arguments
from server.schemas.response_object import Json

SUMMARY = "Summary of our conversation so far:\n"
IMAGE_TOOL_SUCCESS = "The picture is done."  # the image tool's result, as the model reads it
IMAGE_TOOL_FAILURE = "error: The picture was not drawn."
NO_RESULT = "There is no result."  # of another server's tool


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
    written = write(_turns(items, instructions, tools=tools, vision=vision))
    return Context(tuple(with_tool_images_as_user(written.messages)), tuple(written.origins))


def _turns(items: Iterable[StoredItem], instructions: str | None, *, tools: bool, vision: bool) -> list[Turn | Result]:
    """Return the turns and results of items. Thoughts belong to what came of them, calls to the answer before them."""
    turns: list[Turn | Result] = [Turn("system", (instructions,))] if instructions else []
    thoughts: tuple[str, ...] = ()
    for said in (one for item in items for one in _read(item, tools=tools, vision=vision)):
        if not isinstance(said, Turn) or said.role != "assistant":
            turns += [Turn("assistant", thoughts=thoughts), said] if thoughts else [said]
            thoughts = ()
            continue
        thoughts = (*thoughts, *said.thoughts)
        if said.blocks or said.calls:
            before = Turn("assistant") if said.blocks else _last_answer(turns)
            calls = (*before.calls, *said.calls)
            turns.append(Turn("assistant", (*before.blocks, *said.blocks), (*before.thoughts, *thoughts), calls))
            thoughts = ()
    return [*turns, Turn("assistant", thoughts=thoughts)] if thoughts else turns


def _last_answer(turns: list[Turn | Result]) -> Turn:
    """Take the last turn out of the list, if it is the assistant's; else return an empty one."""
    last = turns[-1] if turns else None
    if not isinstance(last, Turn) or last.role != "assistant":
        return Turn("assistant")
    turns.pop()
    return last


def _read(item: StoredItem, *, tools: bool, vision: bool) -> Iterator[Turn | Result]:
    """Yield the turn that an item is, or its call and result."""
    body = item.body
    match body["type"]:
        case "reasoning":
            yield Turn("assistant", thoughts=_thoughts(body))
        case "message":
            yield Turn(body["role"], _blocks(body["content"], vision=vision))
        case "function_call":
            yield _called(body["call_id"], function_name(body["name"], body.get("namespace")), body["arguments"])
        case "custom_tool_call":
            name = function_name(body["name"], body.get("namespace"))
            yield _called(body["call_id"], name, custom_arguments(body["input"]))
        case "function_call_output" | "custom_tool_call_output":
            yield Result(_blocks(body["output"], vision=vision), body["call_id"])
        case "compaction":
            yield Turn("user", (SUMMARY + read_summary(body["encrypted_content"]),))
        case "image_generation_call" if tools:
            yield _called(body["id"], IMAGE_FUNCTION, image_call_arguments(body))
            yield Result((_image_call_result(body),), body["id"])
        case "image_generation_call":
            yield Turn("assistant", (MARK,))
        case _ if exchange := read_exchange(body):
            yield from _exchanged(exchange, tools=tools)


def with_newest_images(context: Context, count: int) -> Context:
    """Return the context with at most this many of its images, the newest; text stands for the older ones."""
    oldest = range(max(0, len(context.images) - count))
    return Context(tuple(replace_images(context.messages, oldest)), context.images[len(oldest) :])


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
    """Append a call of the image tool and its result: the call to the last message, if that is the assistant's."""
    call = {"id": call_id, "type": "function", "function": {"name": IMAGE_FUNCTION, "arguments": arguments}}
    last: Json = {"role": "assistant", "content": None}
    last = messages.pop() if messages and messages[-1]["role"] == "assistant" else last
    messages.append({**last, "tool_calls": [*last.get("tool_calls", ()), call]})
    messages.append({"role": "tool", "tool_call_id": call_id, "content": result})


def _called(call_id: str, name: str, arguments: str) -> Turn:
    return Turn("assistant", calls=(Call(name, arguments, call_id),))


def _exchanged(exchange: Sequence[Call | Result], *, tools: bool) -> Iterator[Turn | Result]:
    """Yield what another server's tool was asked and returned; for a model without tools, as words of its own."""
    last = exchange[-1]
    if not tools:
        yield Turn("assistant", last.blocks if isinstance(last, Result) else (last.arguments,))
        return
    for each in exchange:
        yield Turn("assistant", calls=(each,)) if isinstance(each, Call) else each


def read_exchange(body: Mapping[str, Any]) -> list[Call | Result]:
    """Return the call of a tool that another server ran, and its result as text, as far as the item has them; nothing
    for an item of another kind, or one that says nothing by itself."""
    match body["type"]:
        case "code_interpreter_call":
            logs = [output["logs"] for output in body.get("outputs", ()) if output.get("logs")]
            return _done(body, "code_interpreter", json_text({"code": body.get("code", "")}), "\n".join(logs))
        case "file_search_call":
            found = [f"{one.get('filename', '')}: {one.get('text', '')}" for one in body.get("results", ())]
            return _done(body, "file_search", json_text({"queries": body["queries"]}), "\n".join(found))
        case "mcp_call":
            name = function_name(body["name"], body["server_label"] or None)
            result = f"error: {json_text(body['error'] or None)}" if "error" in body else body.get("output", "")
            return _done(body, name, body["arguments"], result)
        case "local_shell_call" | "shell_call" | "apply_patch_call":
            arguments = json_text(body.get("operation") or body.get("action") or {})
            return [Call(body["type"].removesuffix("_call"), arguments, body["call_id"])]
        case "local_shell_call_output" | "shell_call_output" | "apply_patch_call_output":
            result = json_text(body.get("output") or None) or body.get("status") or NO_RESULT
            return [Result((result,), body.get("call_id") or body["id"])]
    return []


def _done(body: Mapping[str, Any], name: str, arguments: str, result: str) -> list[Call | Result]:
    return [Call(name, arguments, body["id"]), Result((result or NO_RESULT,), body["id"])]


def image_call_arguments(body: Any) -> str:
    """Return the arguments of an image_generation_call item, as JSON."""
    prompt = body.get("revised_prompt") or ""
    return json_text({"prompt": prompt, "action": body.get("action") or "generate"})


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


def _thoughts(body: Mapping[str, Any]) -> Sequence[str]:
    """Return the texts of a reasoning item, or what it says in short of one whose text its server has kept."""
    return [str(part["text"]) for part in body.get("content") or body.get("summary") or () if part.get("text")]


def _blocks(content: str | Sequence[Json], *, vision: bool) -> list[Block]:
    """Return the texts and images of stored parts; marks for a model that does not see."""
    if isinstance(content, str):
        return [content]
    return [_image(part, vision=vision) if part["type"] == "input_image" else _text(part) for part in content]


def _image(part: Json, *, vision: bool) -> Block:
    return Image("picture:", image_of_part(part)) if vision else MARK


def _text(part: Json) -> str:
    return str(part.get("text") or part.get("refusal") or "")
