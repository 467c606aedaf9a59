"""Server-sent events as OpenAI clients read them: LF line ends, one write an event, comments while nothing happens."""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent

from server.flows.text_limits import strings_of

SEPARATOR = "\n"
LONG = 100_000  # characters; writing more would hold up everybody else's events


class JsonEvent(ServerSentEvent):
    """An event whose data is one line of JSON, so that no lines need to be looked for in it."""

    def encode(self) -> bytes:
        """What is sent."""
        name = f"event: {self.event}\n" if self.event else ""
        return f"{name}data: {json.dumps(self.data, separators=(',', ':'))}\n\n".encode()


def event(data: Mapping[str, Any], name: str | None = None) -> ServerSentEvent:
    """One event: a line of JSON, under its name if it has one. It is written when it is sent."""
    return JsonEvent(data, event=name)


def event_stream(
    events: AsyncIterable[ServerSentEvent], comment_every_s: float, headers: Mapping[str, str]
) -> EventSourceResponse:
    """The answer that sends them."""
    return EventSourceResponse(
        _written(events),
        headers={**headers, "Cache-Control": "no-cache"},
        ping=comment_every_s,
        ping_message_factory=lambda: ServerSentEvent(comment="keep-alive", sep=SEPARATOR),
        sep=SEPARATOR,
    )


async def _written(events: AsyncIterable[ServerSentEvent]) -> AsyncIterator[bytes]:
    """Each event's bytes. Pictures make long ones, which are written in a thread."""
    async for item in events:
        length = sum(map(len, strings_of(item.data)))
        yield await asyncio.to_thread(item.encode) if length > LONG else item.encode()
