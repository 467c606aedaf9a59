"""Every chat that runs is listed for operators and for its key, and ended by its id: whatever protocol it came by."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from server.accounts.calls import CallId
from server.errors import Cancelled
from server.state.active_chats import ActiveChat
from tests.support.in_process import InProcess, in_process

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALL = CallId("chat_1", "key", "chat.completions", "", None)
ADMIN = {"Authorization": "Bearer admin"}
BODY: dict[str, Any] = {"model": "starter-chat", "messages": [{"role": "user", "content": "Hello"}]}
STREAM = {**BODY, "stream": True}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}
PROTOCOLS = {
    "chat.completions": ("/v1/chat/completions", BODY),
    "messages": ("/v1/messages", {**BODY, "max_tokens": 9}),
    "gemini.chat": ("/v1beta/models/starter-chat:generateContent", GEMINI),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    home: Path = tmp_path_factory.mktemp("home")
    (home / "admin-key").write_text("admin")
    async with in_process(home) as app:
        yield app


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def closed_gate(running: InProcess) -> AsyncIterator[None]:
    """Chats write two pieces and then wait until the test has ended."""
    running.workers.gate.clear()
    yield
    running.workers.gate.set()


def begin(running: InProcess, path: str, body: dict[str, Any], **headers: str) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(running.client.post(path, json=body, headers=headers))


async def writing(running: InProcess) -> dict[str, Any]:
    """The only job, once both pieces are written."""
    async with asyncio.timeout(60):
        while True:
            found: list[dict[str, Any]] = (await running.client.get("/admin/jobs", headers=ADMIN)).json()["data"]
            if [job["tokens"] for job in found] == [2]:
                return found[0]
            await asyncio.sleep(0.01)


async def none_left(running: InProcess) -> bool:
    return (await running.client.get("/admin/jobs", headers=ADMIN)).json()["data"] == []


async def recorded(running: InProcess, call_id: str) -> dict[str, Any]:
    """A call in the log, which is written after the answer."""
    async with asyncio.timeout(60):
        while True:
            found = await running.client.get(f"/v1/darkroom/calls/{call_id}")
            if found.status_code == 200:
                logged: dict[str, Any] = found.json()
                return logged
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("endpoint", PROTOCOLS)
async def test_a_chat_is_listed_and_ended_by_an_operator(running: InProcess, endpoint: str) -> None:
    path, body = PROTOCOLS[endpoint]
    sent = begin(running, path, body)
    job = await writing(running)
    assert (job["kind"], job["state"], job["endpoint"]) == ("chat", "running", endpoint)
    assert (job["model"], job["key_name"]) == ("starter-chat", "test")
    assert (await running.client.delete(f"/admin/jobs/{job['id']}", headers=ADMIN)).status_code == 200
    answer = await sent
    assert (answer.status_code, answer.headers["x-request-id"]) == (409, job["id"])
    assert answer.headers["x-should-retry"] == "false"
    assert await none_left(running)
    assert (await running.client.delete(f"/admin/jobs/{job['id']}", headers=ADMIN)).status_code == 404


async def test_a_stream_ends_with_the_error(running: InProcess) -> None:
    sent = begin(running, "/v1/chat/completions", STREAM)
    job = await writing(running)
    await running.client.delete(f"/admin/jobs/{job['id']}", headers=ADMIN)
    answer = await sent
    assert answer.status_code == 200
    assert '"code":"cancelled_by_operator"' in answer.text
    assert "[DONE]" not in answer.text
    logged = await recorded(running, job["id"])
    assert (logged["status"], logged["code"]) == (409, "cancelled_by_operator")


async def test_a_chat_with_an_idempotency_key_has_its_own_id(running: InProcess) -> None:
    sent = begin(running, "/v1/chat/completions", BODY, **{"Idempotency-Key": "one"})
    job = await writing(running)
    assert job["id"].startswith("chat_")
    await running.client.delete(f"/admin/jobs/{job['id']}", headers=ADMIN)
    assert (await sent).status_code == 409
    running.workers.gate.set()
    again = await running.client.post("/v1/chat/completions", json=BODY, headers={"Idempotency-Key": "one"})
    assert (again.status_code, again.headers.get("Idempotency-Replayed")) == (200, None)


async def test_a_key_sees_and_ends_its_own_jobs_alone(running: InProcess) -> None:
    sent = begin(running, "/v1/chat/completions", BODY)
    job = await writing(running)
    other = await running.another_key()
    assert (await running.client.get("/v1/darkroom/jobs", headers=other)).json()["data"] == []
    refused = await running.client.delete(f"/v1/darkroom/jobs/{job['id']}", headers=other)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "job_not_found")
    mine = (await running.client.get("/v1/darkroom/jobs")).json()["data"]
    assert [shown["id"] for shown in mine] == [job["id"]]
    assert (await running.client.delete(f"/v1/darkroom/jobs/{job['id']}")).status_code == 200
    assert (await sent).json()["error"]["code"] == "cancelled"


async def test_a_chat_whose_client_reads_slowly_is_ended_at_once() -> None:
    ended = asyncio.Event()

    async def items() -> AsyncGenerator[int, None]:
        try:
            for number in range(9):
                yield number
        finally:
            ended.set()

    chat = ActiveChat(CALL)
    followed = chat.run(items())
    assert await anext(followed) == 0
    await chat.cancel_and_wait()
    assert ended.is_set()
    with pytest.raises(Cancelled):
        await anext(followed)


async def test_a_time_limit_of_the_chat_is_not_a_cancellation() -> None:
    async def items() -> AsyncGenerator[int, None]:
        yield 0
        raise TimeoutError

    followed = ActiveChat(CALL).run(items())
    assert await anext(followed) == 0
    with pytest.raises(TimeoutError):
        await anext(followed)
