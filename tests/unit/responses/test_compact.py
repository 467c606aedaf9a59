"""Compaction: what is kept, what is summarised, and how the summary comes back."""

from base64 import b64encode
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from pipelines.protocol.chat import Admitted, ChatFinished, ChatUsage, TextDelta
from server.backends.storage import LocalStorage
from server.catalog.images import load_catalog
from server.data_folders import REPOSITORY
from server.errors import BadRequest
from server.flows.chat.source import ChatCall
from server.flows.responses.compact import Compactor, compaction_item
from server.flows.responses.context import build_context
from server.flows.responses.items import to_stored
from server.schemas.response_items import Item
from server.schemas.responses import CompactBody
from server.state.served import ServedCatalog

ITEM: TypeAdapter[Any] = TypeAdapter(Item)


class Chat:
    """A model that reads at most so many characters, and answers with one word."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self.read: list[str] = []

    async def prepare(self, call: ChatCall) -> Any:
        return SimpleNamespace(events=partial(self._events, call))

    async def _events(self, call: ChatCall) -> AsyncIterator[Any]:
        text = call.values["messages"][-1]["content"]
        if len(text) > self._most:
            raise BadRequest("too long", code="context_length_exceeded")
        self.read.append(text)
        yield Admitted(9)
        yield TextDelta(0, "short")
        yield ChatFinished(ChatUsage(9, 1), 0.1)


class Stored:
    """No earlier rounds; items as they are sent."""

    async def read_chain(self, *_: Any) -> list[Any]:
        return []

    async def read_inputs(self, _: Any, sent: Any) -> tuple[list[Any], list[str]]:
        return [to_stored(item) for item in sent], []


def item(**fields: Any) -> Any:
    return ITEM.validate_python(fields)


async def compacted(chat: Chat, tmp_path: Path, *items: Any) -> dict[str, Any]:
    catalog = ServedCatalog(load_catalog(REPOSITORY / "model_configs", tmp_path))
    history: Any = Stored()
    made: Any = Compactor(catalog, history, chat, LocalStorage(tmp_path / "results"))  # type: ignore[arg-type]
    key: Any = type("Key", (), {"groups": frozenset({"chat"})})()
    answer: dict[str, Any]
    answer, _ = await made.compact(key, CompactBody(model="starter-chat", input=list(items)))
    return answer


CONVERSATION = (
    item(role="user", content="where is Graz?"),
    item(type="function_call", call_id="c", name="look", arguments='{"at": "map"}'),
    item(type="function_call_output", call_id="c", output="Austria"),
    item(role="assistant", content="In Austria."),
    item(role="user", content="and Wien?"),
)


async def test_the_users_messages_stay_and_all_is_summarised(tmp_path: Path) -> None:
    chat = Chat()
    answer = await compacted(chat, tmp_path, *CONVERSATION)
    *kept, summary = answer["output"]
    assert [one["content"][0]["text"] for one in kept] == ["where is Graz?", "and Wien?"]
    assert answer["object"] == "response.compaction"
    assert answer["usage"]["total_tokens"] == 10
    (read,) = chat.read
    assert all(text in read for text in ("where is Graz?", "look", "map", "Austria", "In Austria."))
    again = [to_stored(item(**summary)), to_stored(item(role="user", content="go on"))]
    first, last = build_context(again, None, tools=True, vision=False).messages
    assert first["content"].endswith("short")
    assert last["content"] == "go on"


async def test_a_conversation_that_is_too_long_is_read_from_its_end(tmp_path: Path) -> None:
    chat = Chat(most=40)
    await compacted(chat, tmp_path, *CONVERSATION)
    (read,) = chat.read
    assert read.endswith("and Wien?")
    assert len(read) <= 40


async def test_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="nothing to compact"):
        await compacted(Chat(), tmp_path)


@pytest.mark.parametrize("content", ["gAAAAA", "", "W10=", "bnVsbA==", b64encode(b"[" * 100_000).decode()])
def test_what_another_server_made_can_not_be_read(content: str) -> None:
    with pytest.raises(BadRequest, match="not made by this server"):
        to_stored(item(type="compaction", encrypted_content=content))
    assert to_stored(item(**compaction_item("x"))).body["type"] == "compaction"
