"""Which texts of a chat are moderated."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from server.accounts.keys import Key
from server.catalog.chat import ChatModel
from server.flows.moderation import ModerationContext
from server.schemas.validation import check_text_length, iter_strings

# fields of other servers, besides messages, that reach the model through its template
TEMPLATE_FIELDS = ("tools", "functions", "documents", "chat_template", "chat_template_kwargs", "response_format")


def chat_moderation_context(chat_id: str, key: Key, model: ChatModel) -> ModerationContext:
    """Return the moderation context of a chat."""
    return ModerationContext(chat_id, key.id, "chat.completions", model.name, model.group)


def chat_texts(messages: Sequence[Mapping[str, Any]], tools: Iterable[Any] = ()) -> list[str]:
    """Return all texts in the model's prompt: contents and tool calls of the messages, and each tool as one text.

    Raises BadRequest if that is longer than any model's context.
    """
    contents = [_content_texts(message) for message in messages]
    texts = [text for parts in contents for text in parts]
    texts += [text for message in messages for text in (*_other_texts(message), *_tool_call_texts(message))]
    texts += [text for tool in tools if (text := "\n".join(iter_strings(tool)))]
    check_text_length(texts)
    return [*texts, *("".join(parts) for parts in contents if len(parts) > 1)]  # templates concatenate parts


def _content_texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get(name) for part in parts if isinstance(part, Mapping) for name in ("text", "refusal")]
    return [text for text in texts if isinstance(text, str)]


def _other_texts(message: Mapping[str, Any]) -> list[str]:
    texts = [message.get(name) for name in ("name", "refusal", "reasoning_content", "reasoning")]
    return [text for text in texts if isinstance(text, str)]


def _tool_call_texts(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield each call as one text. Its arguments are parsed, as templates do: JSON can escape any letter."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield "\n".join(iter_strings({**function, "arguments": _parse(function.get("arguments"))}))
        custom = call.get("custom") if isinstance(call, Mapping) else None
        if isinstance(custom, Mapping):
            yield "\n".join(iter_strings(custom))


def _parse(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments


async def upstream_texts(values: Mapping[str, Any]) -> list[str]:
    """Return the texts of a body for another server. It is not validated, so anything with the shape of a text counts.

    Raises BadRequest if they are longer than any model's context.
    """
    messages = values.get("messages")
    readable = [message for message in messages if isinstance(message, Mapping)] if isinstance(messages, list) else []
    return await asyncio.to_thread(chat_texts, readable, _template_values(values))


def _template_values(values: Mapping[str, Any]) -> Iterator[Any]:
    for name in TEMPLATE_FIELDS:
        value = values.get(name)
        yield from value if isinstance(value, list) else () if value is None else (value,)
