"""Webhooks of image calls: where they may go, how they are signed, and that none is lost."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from sqlalchemy import select

from server import housekeeping
from server.accounts.tables import CallRow, WebhookRow
from server.backends.fetch import FetchRefused, WebhookRules, check_webhook_url, post_webhook
from server.flows.images.webhooks import RETRY_AFTER_S, shown_key
from tests.support.in_process import InProcess, in_process
from tests.support.polling import eventually

PATH = "/v1/images/generations"


@dataclass
class Receiver:
    """A caller's server. It answers with `status`."""

    url: str = ""
    status: int = 200
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head)}
        self.got.append((headers, await reader.readexactly(int(headers["content-length"]))))
        writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/receiver_log"
        yield made


@asynccontextmanager
async def app(home: Path, every_s: float = 3600, **settings: Any) -> AsyncIterator[InProcess]:
    """It looks for due webhooks that often; else the test tells it to."""
    (home / "webhook-secret").write_text("the server's")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(housekeeping, "WEBHOOKS_EVERY_S", every_s)
        async with in_process(home, **settings) as running:
            yield running


async def ended(running: InProcess, job_id: str) -> None:
    call = running.services.running.calls.find(job_id, (await rows(running, CallRow.key_id))[0])
    if call is not None:
        await call.wait_done()


async def rows(running: InProcess, column: Any) -> list[Any]:
    def read() -> list[Any]:
        with running.services.stores.database.read() as session:
            return list(session.scalars(select(column)))

    return await running.services.stores.database.in_reader(read)


async def submit(running: InProcess, url: str, **fields: Any) -> str:
    body = {"prompt": "a boat", "size": "256x256", "background": True, "webhook": url, **fields}
    answer = await running.client.post(PATH, json=body)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


async def test_the_end_of_a_call_is_told_and_the_sdk_verifies_who_told_it(tmp_path: Path) -> None:
    async with receiver() as receiver_log, app(tmp_path, every_s=0.05, webhooks="any") as running:
        job_id = await submit(running, receiver_log.url)
        await eventually(lambda: receiver_log.got)
        key_id = (await rows(running, CallRow.key_id))[0]
        state = (await running.client.get(f"/v1/images/jobs/{job_id}")).json()
    headers, content = receiver_log.got[0]
    secret = shown_key((tmp_path / "webhook-secret").read_bytes(), key_id)
    client = OpenAI(api_key="x", base_url="http://x")
    client.webhooks.verify_signature(content, headers, secret=secret)
    with pytest.raises(ValueError, match="signature"):
        client.webhooks.verify_signature(content + b" ", headers, secret=secret)
    event = json.loads(content)
    assert (event["type"], event["data"]["id"], event["data"]["state"]) == (
        "image.job.succeeded",
        job_id,
        "succeeded",
    )
    assert event["data"]["model"] == state["model"] == "alpha-image-2-count"
    assert event["data"]["result"]["data"][0] == {
        key: value for key, value in state["result"]["data"][0].items() if key != "b64_json"
    }


async def test_it_is_tried_again_also_after_a_restart_and_then_given_up(tmp_path: Path) -> None:
    async with receiver() as receiver_log:
        receiver_log.status = 503
        now = time.time()
        async with app(tmp_path, webhooks="any") as running:
            await ended(running, await submit(running, receiver_log.url))
            await running.services.images.webhooks.deliver_due(now)
        async with app(tmp_path, webhooks="any") as running:
            for wait_s in RETRY_AFTER_S:
                await running.services.images.webhooks.deliver_due(now + wait_s - 1)
                now += wait_s
                await running.services.images.webhooks.deliver_due(now)
            assert await rows(running, WebhookRow.call_id) == []
    ids = {headers["webhook-id"] for headers, _ in receiver_log.got}
    assert (len(receiver_log.got), len(ids)) == (len(RETRY_AFTER_S) + 1, 1)


async def test_a_receiver_that_is_gone_is_not_called_again_and_a_cancel_is_sent(tmp_path: Path) -> None:
    async with receiver() as receiver_log, app(tmp_path, webhooks="any") as running:
        receiver_log.status = 410
        running.workers.gate.clear()
        job_id = await submit(running, receiver_log.url)
        await running.client.post(f"/v1/images/jobs/{job_id}/cancel")
        await running.services.images.webhooks.deliver_due(time.time())
        assert await rows(running, WebhookRow.call_id) == []
    assert json.loads(receiver_log.got[0][1])["type"] == "image.job.cancelled"


async def test_one_whose_call_is_not_known_any_more_is_forgotten(tmp_path: Path) -> None:
    async with app(tmp_path, webhooks="any", idempotency_s=1e-9) as running:
        await ended(running, await submit(running, "http://127.0.0.1:9/"))
        await running.services.images.webhooks.remove_orphans()
        assert len(await rows(running, WebhookRow.call_id)) == 1
        await running.services.stores.calls.retry_in_writer(running.services.stores.calls.delete_expired)
        await running.services.images.webhooks.remove_orphans()
        assert await rows(running, WebhookRow.call_id) == []


@pytest.mark.parametrize(
    ("reach", "fields", "code"),
    [
        ("off", {}, "unsupported_parameter"),
        ("public", {"webhook": "http://example.com/"}, "invalid_value"),
        ("public", {"webhook": "https://example.com:8443/"}, "invalid_value"),
        ("public", {"webhook": "https://a:b@example.com/"}, "invalid_value"),
        ("any", {"webhook": "ftp://example.com/"}, "invalid_value"),
        ("any", {"webhook": "https://[::1"}, "invalid_value"),
        ("any", {"background": False}, "invalid_parameter_combination"),
    ],
)
async def test_a_webhook_that_could_not_be_sent_is_refused(
    tmp_path: Path, reach: str, fields: dict[str, Any], code: str
) -> None:
    async with app(tmp_path, webhooks=reach) as running:
        body = {"prompt": "x", "background": True, "webhook": "https://example.com/hook", **fields}
        refused = await running.client.post(PATH, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, code)
    assert refused.json()["error"]["param"] == "webhook"


async def test_nothing_is_sent_into_the_servers_own_network_unless_the_operator_allows_it() -> None:
    async def inside(host: str, port: int) -> list[str]:
        return ["93.184.215.14", "10.0.0.1"]

    with pytest.raises(FetchRefused, match="public internet"):
        await post_webhook("https://example.com/", b"{}", {}, WebhookRules("public", timeout_s=5, resolve=inside))
    async with receiver() as receiver_log:
        receiver_log.status = 302
        status = await post_webhook(receiver_log.url, b"{}", {"webhook-id": "1"}, WebhookRules("any", timeout_s=5))
    assert (status, len(receiver_log.got)) == (302, 1)
    assert check_webhook_url("https://example.com/x", "public") == ("example.com", 443)
