"""What there is to moderate in a chat."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from server.flows.chat_run import Tally
from server.flows.moderate import Subject, check_texts
from server.services import Services


def chat_subject(services: Services, chat_id: str, tally: Tally) -> Subject:
    """Whose chat is looked at."""
    group = services.catalog.chat.models[tally.model].group
    return Subject(chat_id, tally.key.id, "chat.completions", tally.model, group)


def chat_texts(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the messages say, in strings and in parts."""
    found: list[str] = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
        found += [text for text in texts if isinstance(text, str)]
    return found


async def check_chat(services: Services, tally: Tally, values: Mapping[str, Any]) -> None:
    """Moderate a chat that another server answers, as far as its body can be read: only what goes in, and only words.

    Raises ModerationBlocked.
    """
    messages = values.get("messages")
    readable = [message for message in messages if isinstance(message, Mapping)] if isinstance(messages, list) else []
    subject = chat_subject(services, f"chatcmpl-{uuid.uuid4().hex}", tally)
    await check_texts(services, subject, "input", chat_texts(readable))
