"""What there is to moderate in a chat."""

import asyncio
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from server.flows.chat.run import Tally
from server.flows.moderation import Subject, check_texts
from server.flows.text_limits import check_length, strings_of
from server.services import Services

SHOWN = ("tools", "functions", "documents", "chat_template", "chat_template_kwargs", "response_format")


def chat_subject(services: Services, chat_id: str, tally: Tally) -> Subject:
    """Whose chat is looked at."""
    group = services.catalog.chat.models[tally.model].group
    return Subject(chat_id, tally.key.id, "chat.completions", tally.model, group)


def chat_texts(messages: Sequence[Mapping[str, Any]], tools: Iterable[Any] = ()) -> list[str]:
    """All words that the model is shown: what the messages say and call, and each tool's as one text.

    Raises BadRequest if that is more than any model reads.
    """
    said = [_said(message) for message in messages]
    found = [text for texts in said for text in texts]
    found += [text for message in messages for text in (*_besides(message), *_called(message))]
    found += ["\n".join(strings_of(tool)) for tool in tools]
    check_length(found)
    return [*found, *("".join(texts) for texts in said if len(texts) > 1)]  # as templates put parts together


def _said(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get(name) for part in parts if isinstance(part, Mapping) for name in ("text", "refusal")]
    return [text for text in texts if isinstance(text, str)]


def _besides(message: Mapping[str, Any]) -> list[str]:
    texts = [message.get(name) for name in ("name", "refusal", "reasoning_content", "reasoning")]
    return [text for text in texts if isinstance(text, str)]


def _called(message: Mapping[str, Any]) -> Iterator[str]:
    """Each call as one text, its arguments as the template reads them: JSON can spell any letter otherwise."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield "\n".join(strings_of({**function, "arguments": _read(function.get("arguments"))}))


def _read(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments


async def check_chat(services: Services, tally: Tally, values: Mapping[str, Any]) -> None:
    """Moderate a chat that another server answers, as far as its body can be read: only what goes in, and only words.

    Raises ModerationBlocked.
    """
    messages = values.get("messages")
    readable = [message for message in messages if isinstance(message, Mapping)] if isinstance(messages, list) else []
    subject = chat_subject(services, f"chatcmpl-{uuid.uuid4().hex}", tally)
    await check_texts(services, subject, "input", await asyncio.to_thread(chat_texts, readable, _shown(values)))


def _shown(values: Mapping[str, Any]) -> Iterator[Any]:
    """What other servers' templates show besides messages."""
    for name in SHOWN:
        value = values.get(name)
        yield from value if isinstance(value, list) else () if value is None else (value,)
