"""Calls that the server sends to its own app, within the process: through all middleware, as a client's call goes."""

from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from server.accounts.batches import Batch, BatchLine
from server.flows.batches.run import BatchLineAnswer
from server.http.deps import FORWARDED
from server.http.public_address import NAMED_HOST, PREFIX

PORTS: Mapping[str, int] = {"http": 80, "https": 443}


async def send_batch_line(app: ASGIApp, batch: Batch, line: BatchLine) -> BatchLineAnswer:
    """Send a line of a batch to the app with the batch's key, at the address that the batch was sent to, and return the
    answer. Its Idempotency-Key is the line's own."""
    address = urlsplit(batch.base)
    server = (address.hostname, address.port or PORTS[address.scheme])
    caller_scope = {FORWARDED: batch.key_id, "server": server, PREFIX: address.path, NAMED_HOST: True}

    async def as_key(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, **caller_scope}, receive, send)

    transport = httpx.ASGITransport(as_key, raise_app_exceptions=False)
    headers = {"Content-Type": "application/json", "Idempotency-Key": f"{batch.id}-{line.position}"}
    base = address._replace(path="").geturl()
    async with httpx.AsyncClient(transport=transport, base_url=base, timeout=None) as client:  # noqa: S113
        answer = await client.post(line.url, content=line.body.encode(), headers=headers)
    retry_after = answer.headers.get("retry-after", "")
    return BatchLineAnswer(
        answer.status_code,
        answer.headers.get("x-request-id"),
        float(retry_after) if retry_after.isdecimal() else None,
        answer.text.strip(),
    )
