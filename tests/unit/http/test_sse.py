"""Events as bytes: their format, and the thread that encodes them."""

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sse_starlette import ServerSentEvent

from server.http import sse
from server.http.sse import LONG, SEPARATOR, event, event_stream

IMAGE = {"type": "image", "output": [{"result": "A" * LONG}, {"text": "two\nlines\u2028"}]}


async def sent(*events: ServerSentEvent) -> list[bytes]:
    async def events_iter() -> AsyncIterator[ServerSentEvent]:
        for item in events:
            yield item

    return [bytes(part) async for part in event_stream(events_iter(), 15, {}).body_iterator]  # type: ignore[arg-type]


async def test_an_event_is_its_name_and_a_line_of_json() -> None:
    named, bare, done = await sent(event(IMAGE, "image"), event({"a": [1]}), ServerSentEvent("[DONE]", sep=SEPARATOR))
    name, data, *rest = named.decode().split("\n")
    assert (name, rest) == ("event: image", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == IMAGE
    assert (bare, done) == (b'data: {"a":[1]}\n\n', b"data: [DONE]\n\n")


async def test_long_events_are_encoded_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    dumps, on_main_thread = json.dumps, []

    def recorded_dumps(*args: Any, **options: Any) -> str:
        on_main_thread.append(threading.current_thread() is threading.main_thread())
        return dumps(*args, **options)

    monkeypatch.setattr(sse.json, "dumps", recorded_dumps)
    await sent(event({"a": 1}), event(IMAGE), event({"a": 1}))
    assert on_main_thread == [True, False, True]
