"""Server-sent events as OpenAI clients read them: LF line ends, one write an event, comments while nothing happens."""

import json
from collections.abc import AsyncIterable, Mapping
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent

SEPARATOR = "\n"


def event(data: Mapping[str, Any], name: str | None = None) -> ServerSentEvent:
    """One event: a line of JSON, under its name if it has one."""
    return ServerSentEvent(json.dumps(data, separators=(",", ":")), event=name, sep=SEPARATOR)


def event_stream(
    events: AsyncIterable[ServerSentEvent], comment_every_s: float, headers: Mapping[str, str]
) -> EventSourceResponse:
    """The answer that sends them."""
    return EventSourceResponse(
        events,
        headers={**headers, "Cache-Control": "no-cache"},
        ping=comment_every_s,
        ping_message_factory=lambda: ServerSentEvent(comment="keep-alive", sep=SEPARATOR),
        sep=SEPARATOR,
    )
