"""A request for a batch that is sent again gets the batch that there is; two that are meant twice are two."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn
from openai import AsyncOpenAI
from sqlalchemy import func, select, update

from server.accounts.response_tables import BatchRow
from server.cli.http_protocol import ConnectionLimits, protocol_class
from server.errors import DatabaseBusy
from server.state.active_calls import RETRY_WINDOW_S
from tests.support.in_process import InProcess, in_process
from tests.support.polling import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
FIRST, RETRY = {"x-stainless-retry-count": "0"}, {"x-stainless-retry-count": "1"}
KEPT_S = 3600


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("lines")
    async with in_process(home, batch_folder=folder, idempotency_s=KEPT_S) as app:
        yield app


def body(name: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": name}]
    line = {"custom_id": "a", "url": CHAT, "body": {"model": "starter-chat", "messages": messages}}
    return {"input": [line], **fields}


async def send(running: InProcess, sent: dict[str, Any], **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await running.client.post("/v1/batches", json=sent, headers=named)


async def batch_id(running: InProcess, sent: dict[str, Any], replayed: bool, **headers: str) -> str:
    answer = await send(running, sent, **headers)
    assert answer.status_code == 200, answer.text
    assert ("idempotency-replayed" in answer.headers) is replayed
    found: str = answer.json()["id"]
    return found


def count(running: InProcess) -> int:
    with running.services.stores.database.read() as session:
        return int(session.scalar(select(func.count()).select_from(BatchRow)) or 0)


def age(running: InProcess, name: str, age_s: float) -> None:
    with running.services.stores.database.write() as session:
        session.execute(update(BatchRow).where(BatchRow.id == name).values(created_at=BatchRow.created_at - age_s))


async def test_an_idempotency_key_makes_one_batch_however_the_body_is_written(running: InProcess) -> None:
    first = await batch_id(running, body("keyed"), False, idempotency_key="k1")
    reordered = dict(reversed(body("keyed", completion_window="24h", endpoint=None).items()))
    for again in (body("keyed"), reordered):
        assert await batch_id(running, again, True, idempotency_key='"k1"') == first
    other = await send(running, body("another"), idempotency_key="k1")
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert await batch_id(running, body("keyed"), False, idempotency_key="k2") != first
    assert await batch_id(running, body("keyed"), False, **RETRY) != first, "a key's batch is for that key"
    unprintable = await send(running, body("keyed"), idempotency_key="k" * 256)
    assert (unprintable.status_code, unprintable.json()["error"]["code"]) == (400, "invalid_idempotency_key")


async def test_a_keyed_batch_stays_what_it_is_when_it_is_cancelled(running: InProcess) -> None:
    first = await batch_id(running, body("cancelled"), False, idempotency_key="c")
    await running.client.post(f"/v1/batches/{first}/cancel")
    assert await batch_id(running, body("cancelled"), True, idempotency_key="c") == first


async def test_an_idempotency_key_is_free_after_its_time(running: InProcess) -> None:
    first = await batch_id(running, body("old"), False, idempotency_key="o")
    await asyncio.to_thread(age, running, first, KEPT_S - 60)
    assert await batch_id(running, body("old"), True, idempotency_key="o") == first
    await asyncio.to_thread(age, running, first, 120)
    second = await batch_id(running, body("new"), False, idempotency_key="o")
    assert await batch_id(running, body("new"), True, idempotency_key="o") == second


async def test_requests_at_once_with_one_key_make_one_batch(running: InProcess) -> None:
    before = await asyncio.to_thread(count, running)
    answers = await asyncio.gather(*(send(running, body("at once"), idempotency_key="once") for _ in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    assert await asyncio.to_thread(count, running) == before + 1


async def test_keys_of_the_api_never_meet(running: InProcess) -> None:
    other = await running.another_key()
    first = await batch_id(running, body("mine"), False, idempotency_key="mine")
    assert await batch_id(running, body("mine"), False, **other, idempotency_key="mine") != first
    assert (await send(running, body("yours"), **other, idempotency_key="yours")).status_code == 200
    assert (await send(running, body("plain"))).status_code == 200
    await batch_id(running, body("plain"), False, **other, **RETRY)


async def test_a_batch_that_is_meant_twice_is_made_twice(running: InProcess) -> None:
    first = await batch_id(running, body("twice"), False)
    assert await batch_id(running, body("twice"), False) != first
    assert await batch_id(running, body("twice"), False, **FIRST) != first


async def test_a_request_that_says_it_is_a_retry_gets_the_newest_equal_batch(running: InProcess) -> None:
    await batch_id(running, body("again"), False, **FIRST)
    newest = await batch_id(running, body("again"), False, **FIRST)
    assert await batch_id(running, body("again"), True, **RETRY) == newest
    await batch_id(running, body("again, other"), False, **RETRY)
    await asyncio.to_thread(age, running, newest, RETRY_WINDOW_S + 60)
    await running.client.post(f"/v1/batches/{(await send(running, body('left'), **FIRST)).json()['id']}/cancel")
    await batch_id(running, body("left"), False, **RETRY)


async def test_a_retry_of_a_batch_that_was_refused_for_now_is_a_new_one(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await batch_id(running, body("busy"), False, **FIRST)
    store = running.services.stores.batches

    def refuse(*_: Any) -> None:
        raise DatabaseBusy("locked", began=False, undone=True)

    with monkeypatch.context() as patched:
        patched.setattr(store, "find_earlier", refuse)
        assert (await send(running, body("busy"), **FIRST)).status_code == 503
    second = await batch_id(running, body("busy"), False, **RETRY)
    assert second != first
    assert await batch_id(running, body("busy"), True, x_stainless_retry_count="2") == second


async def test_a_retry_gets_its_batch_though_its_file_is_another(running: InProcess) -> None:
    folder = running.services.settings.batch_folder or Path()
    (folder / "night.jsonl").write_text(json.dumps(body("of a file")["input"][0]))
    sent = {"input_file_id": "night.jsonl", "endpoint": CHAT}
    first = await batch_id(running, sent, False, idempotency_key="file")
    (folder / "night.jsonl").unlink()
    assert await batch_id(running, sent, True, idempotency_key="file") == first


async def test_openais_client_makes_one_batch_though_its_first_answer_is_lost(running: InProcess) -> None:
    sent: list[int] = []

    class LosesTheFirst(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            answer = await running.client._transport.handle_async_request(request)
            sent.append(answer.status_code)
            if len(sent) == 1:
                raise httpx.ReadError("cut")
            return answer

    before, secret = await asyncio.to_thread(count, running), running.client.headers["Authorization"][7:]
    async with httpx.AsyncClient(transport=LosesTheFirst()) as http:
        client = AsyncOpenAI(base_url="http://test/v1", api_key=secret, http_client=http)
        await client.batches.create(  # with lines as this server takes them
            input_file_id="", endpoint="/v1/chat/completions", completion_window="24h", extra_body=body("sdk")
        )
    assert sent == [200, 200]
    assert await asyncio.to_thread(count, running) == before + 1


async def test_a_client_that_lost_the_answer_gets_the_batch_without_any_header(running: InProcess) -> None:
    content = json.dumps(body("lost")).encode()
    head = f"POST /v1/batches HTTP/1.1\r\nHost: test\r\nAuthorization: {running.client.headers['Authorization']}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    http = protocol_class(ConnectionLimits(9, 9), 5.0, 5.0)
    server = uvicorn.Server(uvicorn.Config(running.app, http=http, lifespan="off", log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server._serve([listener]))
    try:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(head.encode() + content)
        assert (await reader.read(9)).startswith(b"HTTP/1.1")
        linger = struct.pack("ii", 1, 0)  # closing resets the connection
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

        def lost() -> bool:
            with running.services.stores.database.read() as session:
                return session.scalar(select(BatchRow.id).where(BatchRow.answer_lost)) is not None

        await eventually(lost)
    finally:
        server.should_exit = server.force_exit = True
        await serving
    first = await batch_id(running, body("lost"), True)
    assert await batch_id(running, body("lost"), False) != first
