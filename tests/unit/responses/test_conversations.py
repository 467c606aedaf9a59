"""Conversations: what a key puts in, what responses add, and who sees it."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from server.accounts import conversations
from server.http import examples
from tests.support.in_process import InProcess, in_process, png
from tests.support.openapi import check, operations, response

IMAGE = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
GRAZ = {"role": "user", "content": "I am in Graz."}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path) as running:
        yield running


async def call(app: InProcess, method: str, path: str, status: int = 200, **options: Any) -> Any:
    answer = await app.client.request(method, f"/v1/{path}", **options)
    assert answer.status_code == status, answer.text
    return answer.json()


async def begin(app: InProcess, *items: Any) -> str:
    conversation = await call(app, "POST", "conversations", json={"items": items, "metadata": {"user": "7"}})
    return str(conversation["id"])


async def texts(app: InProcess, name: str) -> list[tuple[str, str]]:
    page = await call(app, "GET", f"conversations/{name}/items?order=asc")
    return [(item["role"], item["content"][0]["text"]) for item in page["data"]]


async def test_a_response_reads_the_conversation_and_adds_its_round(app: InProcess) -> None:
    name = await begin(app, GRAZ)
    for sent in (name, {"id": name}):
        answer = await call(app, "POST", "responses", json={"input": "Where am I?", "conversation": sent})
        assert answer["conversation"] == {"id": name}
    asked = app.workers.jobs[-1].messages
    assert [message["content"] for message in asked] == ["I am in Graz.", "Where am I?", "Hello", "Where am I?"]
    said = [("user", "Where am I?"), ("assistant", "Hello")]
    assert await texts(app, name) == [("user", "I am in Graz."), *said, *said]
    await call(app, "DELETE", f"responses/{answer['id']}")
    assert len(await texts(app, name)) == 5


async def test_what_can_not_be_read_in_added_items_is_a_text_and_named(app: InProcess) -> None:
    name = await begin(app)
    pdf = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
    asked = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    told = {"type": "function_call_output", "call_id": "c1", "output": [pdf]}
    items = [{"role": "user", "content": [pdf]}, {"type": "novel"}, asked, told]
    answer = await app.client.post(f"/v1/conversations/{name}/items", json={"items": items})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-darkroom-ignored"] == "items[0].content[0], items[3].output[0], items[1]"
    await call(app, "POST", "responses", json={"input": "Hi", "conversation": name})
    assert "[file: a.pdf]" in str(app.workers.jobs[-1].messages)
    only = {"items": [{"role": "user", "content": [pdf]}]}
    refused = await call(app, "POST", f"conversations/{name}/items", 400, json=only)
    assert refused["error"]["param"] == "items[0].content[0].type"


async def test_a_failed_response_adds_nothing(app: InProcess) -> None:
    name = await begin(app)
    app.workers.fails = True
    await call(app, "POST", "responses", 500, json={"input": "Hi", "conversation": name})
    assert await texts(app, name) == []


async def test_items_are_added_shown_and_deleted(app: InProcess) -> None:
    name = await begin(app)
    added = await call(
        app, "POST", f"conversations/{name}/items", json={"items": [GRAZ, {**GRAZ, "content": "Still."}]}
    )
    first, last = (item["id"] for item in added["data"])
    assert (added["first_id"], added["last_id"], added["has_more"]) == (first, last, False)
    page = await call(app, "GET", f"conversations/{name}/items?order=asc&limit=1")
    assert (page["last_id"], page["has_more"]) == (first, True)
    page = await call(app, "GET", f"conversations/{name}/items?order=asc&after={first}")
    assert [item["id"] for item in page["data"]] == [last]
    await call(app, "GET", f"conversations/{name}/items?after=msg_x", 400)
    assert (await call(app, "GET", f"conversations/{name}/items/{last}"))["content"][0]["text"] == "Still."
    assert (await call(app, "DELETE", f"conversations/{name}/items/{last}"))["id"] == name
    await call(app, "GET", f"conversations/{name}/items/{last}", 404)
    assert await texts(app, name) == [("user", "I am in Graz.")]


async def test_metadata_is_replaced_and_the_conversation_deleted(app: InProcess) -> None:
    name = await begin(app, GRAZ)
    assert (await call(app, "GET", f"conversations/{name}"))["metadata"] == {"user": "7"}
    changed = await call(app, "POST", f"conversations/{name}", json={"metadata": {"topic": "travel"}})
    assert changed["metadata"] == {"topic": "travel"}
    assert (await call(app, "DELETE", f"conversations/{name}"))["deleted"] is True
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/items")):
        await call(app, method, f"conversations/{name}{path}", 404)
    refused = await call(app, "POST", "responses", 404, json={"input": "Hi", "conversation": name})
    assert refused["error"]["param"] == "conversation"


async def test_another_key_finds_nothing(app: InProcess) -> None:
    name = await begin(app, GRAZ)
    (item,) = (await call(app, "GET", f"conversations/{name}/items"))["data"]
    other = await app.another_key()
    for method, path, body in (
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [GRAZ]}),
        ("GET", f"/items/{item['id']}", None),
        ("DELETE", f"/items/{item['id']}", None),
    ):
        await call(app, method, f"conversations/{name}{path}", 404, json=body, headers=other)
    await call(app, "POST", "responses", 404, json={"input": "Hi", "conversation": name}, headers=other)
    assert await texts(app, name) == [("user", "I am in Graz.")]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "conversation"),
        ({"store": False}, "conversation"),
        ({"conversation": 7}, "conversation"),
        ({"conversation": {}}, "conversation.id"),
    ],
)
async def test_what_does_not_go_together_is_refused(app: InProcess, body: dict[str, Any], param: str) -> None:
    sent = {"input": "Hi", "conversation": "conv_1", **body}
    refused = await call(app, "POST", "responses", 400, json=sent)
    assert refused["error"]["param"] == param


async def test_limits_are_named(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = await call(app, "POST", "conversations", 400, json={"items": [GRAZ] * 21})
    assert (refused["error"]["param"], refused["error"]["code"]) == ("items", "array_above_max_length")
    name = await begin(app, GRAZ)
    monkeypatch.setattr(conversations, "MAX_ITEMS", 1)
    monkeypatch.setattr(conversations, "MAX_CONVERSATIONS", 1)
    refused = await call(app, "POST", f"conversations/{name}/items", 400, json={"items": [GRAZ]})
    assert refused["error"]["code"] == "too_many_items"
    refused = await call(app, "POST", "conversations", 400, json={})
    assert refused["error"]["code"] == "too_many_conversations"


async def test_its_images_stay_until_it_is_deleted(app: InProcess) -> None:
    image = {"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]}
    name = await begin(app, image)
    (item,) = (await call(app, "GET", f"conversations/{name}/items"))["data"]
    assert item["content"][0]["image_url"] == IMAGE
    store = app.services.stores.conversations
    names = [file.name for file in app.services.settings.results.rglob("*.png")]
    assert await store.in_reader(store.referenced_files, names) == set(names) != set()
    await store.in_writer(store.delete_expired, -1.0)
    assert await store.in_reader(store.referenced_files, names) == set()
    await call(app, "GET", f"conversations/{name}", 404)


async def test_what_was_put_in_is_moderated_with_the_next_response(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rules]]\nname = "words"\ncategory = "violence"\nterms = ["forbidden"]\n')
    async with in_process(tmp_path / "home", moderation=policy) as app:
        name = await begin(app, {"role": "user", "content": "something forbidden"})
        refused = await call(app, "POST", "responses", 400, json={"input": "Go on", "conversation": name})
        assert refused["error"]["code"] == "moderation_blocked"


async def test_answers_are_as_documented(app: InProcess) -> None:
    document = (await app.client.get("/openapi.json")).json()
    documented = {(method, path): operation for method, path, operation in operations(document)}
    name = await begin(app, GRAZ)
    (item,) = (await call(app, "GET", f"conversations/{name}/items"))["data"]
    bodies = {"": examples.CHANGE_CONVERSATION, "/items": examples.CONVERSATION_ITEMS}
    for (method, path), operation in documented.items():
        if path.startswith("/v1/conversations/{conversation_id}") and method != "DELETE":
            rest = path.removeprefix("/v1/conversations/{conversation_id}")
            sent = next(iter(bodies[rest].values())) if method == "POST" else None
            url = f"conversations/{name}{rest.replace('{item_id}', item['id'])}"
            value = await call(app, method, url, json=sent)
            schema = response(document, operation, 200)["content"]["application/json"]["schema"]
            check(document, schema, value, exact=True)


async def test_the_sdk_has_a_conversation(app: InProcess) -> None:
    secret = app.client.headers["Authorization"].removeprefix("Bearer ")
    client = AsyncOpenAI(base_url="http://test/v1", api_key=secret, http_client=app.client)
    conversation = await client.conversations.create(items=[{"role": "user", "content": "I am in Graz."}])
    answer = await client.responses.create(input="Where am I?", conversation=conversation.id)
    assert answer.conversation is not None
    assert answer.conversation.id == conversation.id
    items = [item async for item in client.conversations.items.list(conversation.id, order="asc", limit=2)]
    assert [item.type for item in items] == ["message"] * 3
    await client.conversations.items.delete(str(items[0].id), conversation_id=conversation.id)
    assert (await client.conversations.update(conversation.id, metadata={"a": "b"})).metadata == {"a": "b"}
    assert (await client.conversations.delete(conversation.id)).deleted
