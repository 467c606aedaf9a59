"""The response object, its items and their parts, with every key that OpenAI's clients require."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pipelines.protocol.chat import ChatUsage

Json = dict[str, Any]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ENDED: frozenset[ResponseStatus] = frozenset({"completed", "incomplete", "failed", "cancelled"})


def response_object(
    response_id: str,
    created_at: int,
    echo: Mapping[str, Any],
    status: ResponseStatus,
    output: Sequence[Mapping[str, Any]] = (),
    ended: Mapping[str, Any] | None = None,
) -> Json:
    """Build the response object. `ended` has the fields that are known only at the end: completed_at, usage, error,
    incomplete_details."""
    end = ended or {}
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": end.get("completed_at"),
        "status": status,
        "error": end.get("error"),
        "incomplete_details": end.get("incomplete_details"),
        "output": list(output),
        "usage": end.get("usage"),
        **echo,
    }


def usage_object(usage: ChatUsage) -> Json:
    """Return the tokens of all turns of the chat model. Images are not counted."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def message_item(item_id: str, status: str, content: Sequence[Json]) -> Json:
    """Build the item of an answer of the model."""
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": list(content)}


def text_part(text: str, logprobs: Sequence[Json] = ()) -> Json:
    """Build the text part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def function_item(
    item_id: str, status: str, call_id: str, name: str, arguments: str, namespace: str | None = None
) -> Json:
    """Build the item of a call of a client's function."""
    called = {"call_id": call_id, "name": name, "arguments": arguments}
    return {"id": item_id, "type": "function_call", "status": status, **called, **_namespace(namespace)}


def custom_item(item_id: str, status: str, call_id: str, name: str, text: str, namespace: str | None = None) -> Json:
    """Build the item of a call of a client's custom tool."""
    called = {"call_id": call_id, "name": name, "input": text}
    return {"id": item_id, "type": "custom_tool_call", "status": status, **called, **_namespace(namespace)}


def _namespace(namespace: str | None) -> Json:
    return {} if namespace is None else {"namespace": namespace}


def reasoning_item(item_id: str, status: str, text: str) -> Json:
    """Build the item of the model's reasoning."""
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": content}


def image_item(item_id: str, status: str, details: Mapping[str, Any] | None = None) -> Json:
    """Build the item of an image. `details`: prompt, size, quality, background, format and url, or its error."""
    return {"id": item_id, "type": "image_generation_call", "status": status, "result": None, **(details or {})}


def item_list(items: Sequence[Json], *, has_more: bool) -> Json:
    """Build a list of items."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
