"""Which words of a chat are read: all that its model is shown."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipelines.protocol.chat import CountJob
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.errors import BadRequest, ModerationBlocked
from server.flows.chat.moderation import chat_texts, check_chat
from server.flows.chat.parse import read_chat
from server.flows.chat.run import Tally, count_tokens
from server.moderation.policy import load_policy
from server.schemas.chat_messages import MAX_TEXT
from server.services import Services


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.migrate()
    return database


def said(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def called(arguments: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "cut", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "with a knife",
        "parameters": {"type": "object", "properties": {"knives": {"enum": ["dagger"]}}},
    },
}


def test_plain_messages_are_their_contents() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert chat_texts([said("one"), said([{"type": "text", "text": "two"}, picture])]) == ["one", "two"]


def test_parts_are_read_apart_and_as_templates_join_them() -> None:
    parts = [{"type": "text", "text": "a kn"}, {"type": "refusal", "refusal": "ife"}]
    assert chat_texts([said(parts)]) == ["a kn", "ife", "a knife"]


@pytest.mark.parametrize("arguments", ['{"what": "knife"}', r'{"what": "k\u006eife"}', "knife}", '{"knife": 1}'])
def test_calls_are_read_however_their_json_is_spelled(arguments: str) -> None:
    (text,) = chat_texts([called(arguments)])
    assert text.startswith("name\ncut\n")
    assert "knife" in text


def test_refusals_thoughts_and_results_are_read() -> None:
    refused = {"role": "assistant", "refusal": "no knife", "reasoning_content": "hmm"}
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}
    assert chat_texts([refused, result]) == ["done", "no knife", "hmm"]


def test_a_tool_is_one_text_with_the_names_of_its_parameters() -> None:
    (text,) = chat_texts([], read_chat({"messages": [said("x")], "tools": [WEATHER]}).tools)
    assert {"weather", "with a knife", "knives", "dagger"} <= set(text.split("\n"))


def test_what_is_nested_a_thousand_times_is_read() -> None:
    deep: Any = "knife"
    for _ in range(5000):
        deep = [deep]
    assert chat_texts([], [deep]) == ["knife"]


@pytest.mark.parametrize(
    "field", [{"documents": [{"title": "a knife"}]}, {"chat_template": "a knife"}, {"functions": [WEATHER]}]
)
async def test_what_another_servers_template_shows_is_read_too(
    tmp_path: Path, database: Database, field: dict[str, Any]
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[[rules]]\nname = "no-knives"\ncategory = "violence"\nterms = ["knife"]\n')
    key, _ = create_key(database, "one", frozenset({"chat"}))
    chat = SimpleNamespace(models={"large": SimpleNamespace(group="chat")})
    made = SimpleNamespace(
        policy=load_policy(path, tmp_path, {"chat"}), database=database, catalog=SimpleNamespace(chat=chat)
    )
    services, tally = cast(Services, made), Tally(key, "large")
    await check_chat(services, tally, {"messages": [said("hello")]})
    with pytest.raises(ModerationBlocked, match="no-knives"):
        await check_chat(services, tally, {"messages": [said("hello")], **field})


async def test_more_text_than_any_model_reads_is_refused_before_it_is_worked_on() -> None:
    half = said("x" * (MAX_TEXT // 2 + 1))
    with pytest.raises(BadRequest, match="Expected at most 10485760") as raised:
        chat_texts([half, half])
    assert raised.value.code == "string_above_max_length"
    cancelled: list[str] = []
    services = cast(Services, SimpleNamespace(chat=SimpleNamespace(cancel=cancelled.append)))
    with pytest.raises(BadRequest):
        await count_tokens(services, CountJob("count_1", cast(Any, None), (half, half)))
