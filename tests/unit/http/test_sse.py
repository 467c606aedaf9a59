"""Events as bytes: their form, and who writes the long ones."""

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sse_starlette import ServerSentEvent

from server.http import sse
from server.http.sse import LONG, SEPARATOR, event, event_stream

PICTURE = {"type": "drawn", "output": [{"result": "A" * LONG}, {"text": "two\nlines\u2028"}]}


async def sent(*events: ServerSentEvent) -> list[bytes]:
    async def told() -> AsyncIterator[ServerSentEvent]:
        for item in events:
            yield item

    return [bytes(part) async for part in event_stream(told(), 15, {}).body_iterator]  # type: ignore[arg-type]


async def test_an_event_is_its_name_and_a_line_of_json() -> None:
    named, bare, done = await sent(event(PICTURE, "drawn"), event({"a": [1]}), ServerSentEvent("[DONE]", sep=SEPARATOR))
    name, data, *end = named.decode().split("\n")
    assert (name, end) == ("event: drawn", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == PICTURE
    assert (bare, done) == (b'data: {"a":[1]}\n\n', b"data: [DONE]\n\n")


async def test_the_event_loop_writes_short_events_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    dumps, writers = json.dumps, []

    def watched(*given: Any, **options: Any) -> str:
        writers.append(threading.current_thread() is threading.main_thread())
        return dumps(*given, **options)

    monkeypatch.setattr(sse.json, "dumps", watched)
    await sent(event({"a": 1}), event(PICTURE), event({"a": 1}))
    assert writers == [True, False, True]
