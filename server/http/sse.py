"""Server-sent events as OpenAI clients read them: LF line ends, one write per event, comments while nothing happens."""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent

from server.schemas.validation import iter_strings

SEPARATOR = "\n"
LONG = 100_000  # characters; encoding more on the event loop would delay all other streams


class JsonEvent(ServerSentEvent):
    """An event whose data is one line of JSON, so it need not be split at line breaks."""

    def encode(self) -> bytes:
        """Return the event as the bytes that are sent."""
        name = f"event: {self.event}\n" if self.event else ""
        return f"{name}data: {json.dumps(self.data, separators=(',', ':'))}\n\n".encode()


def event(data: Mapping[str, Any], name: str | None = None) -> ServerSentEvent:
    """Return an event with one line of JSON. It is encoded when it is sent."""
    return JsonEvent(data, event=name)


def event_stream(
    events: AsyncIterable[ServerSentEvent],
    comment_interval_s: float,
    headers: Mapping[str, str],
    *,
    comment: str | None = "keep-alive",
) -> EventSourceResponse:
    """Return a response that streams events. Without a `comment`, an empty line is sent while nothing happens: not
    every client knows comments."""
    return EventSourceResponse(
        _encode_events(events),
        headers={**headers, "Cache-Control": "no-cache"},
        ping=comment_interval_s,
        ping_message_factory=lambda: ServerSentEvent(comment=comment, sep=SEPARATOR),
        sep=SEPARATOR,
    )


async def _encode_events(events: AsyncIterable[ServerSentEvent]) -> AsyncIterator[bytes]:
    """Yield each event's bytes. Long events, which contain images, are encoded in a thread."""
    async for item in events:
        length = sum(map(len, iter_strings(item.data)))
        yield await asyncio.to_thread(item.encode) if length > LONG else item.encode()
