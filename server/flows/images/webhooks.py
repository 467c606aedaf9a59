"""Tells a caller's server that an image call has ended: signed as Standard Webhooks has it, with retries."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from server.accounts.webhooks import LONGEST_PAUSE_S, Webhook, WebhookStore
from server.backends.fetch import FetchFailed, FetchRefused, WebhookRules, check_webhook_url, post_webhook
from server.errors import BadRequest
from server.flows.images.jobs import ended_state

log = structlog.stdlib.get_logger("darkroom.webhooks")

RETRY_AFTER_S = (5, 60, 300, 1800, 7200, LONGEST_PAUSE_S)  # then it is given up
AT_ONCE = 20
GONE = 410  # its receiver wants no more


class Webhooks:
    """Sends the webhooks that are due. `read_secret` reads the server's own secret: a file."""

    def __init__(self, store: WebhookStore, rules: WebhookRules, read_secret: Callable[[], bytes]) -> None:
        self._store = store
        self._rules = rules
        self._read_secret = read_secret

    def check(self, url: str, *, in_background: bool) -> None:
        """Check that a webhook could be sent. Raises BadRequest if not."""
        if self._rules.reach == "off":
            message = "'webhook' is not allowed on this server (DARKROOM_WEBHOOKS): ask for the job's state instead."
            raise BadRequest(message, param="webhook", code="unsupported_parameter")
        if not in_background:
            message = "'webhook' works in the background only: send 'background': true too, or leave it out."
            raise BadRequest(message, param="webhook", code="invalid_parameter_combination")
        try:
            check_webhook_url(url, self._rules.reach)
        except FetchRefused as error:
            raise BadRequest(f"Invalid 'webhook': {error}", param="webhook", code="invalid_value") from error

    async def deliver_due(self, now: float | None = None) -> None:
        """Try once to deliver each webhook that is due."""
        now = self._store.now() if now is None else now
        if not await self._store.in_reader(self._store.any_due, now):
            return
        due = await self._store.retry_in_writer(self._store.claim_due, now, AT_ONCE)
        await asyncio.gather(*(self._deliver(webhook, now) for webhook in due))

    async def remove_orphans(self) -> None:
        """Forget the webhooks whose calls are not known any more."""
        await self._store.retry_in_writer(self._store.remove_orphans)

    async def _deliver(self, webhook: Webhook, now: float) -> None:
        call, attempts = webhook.record.call, webhook.attempts + 1
        content = _payload(webhook)
        secret = await asyncio.to_thread(self._read_secret)
        headers = signature(signing_key(secret, call.key_id), f"msg_{call.id}", now, content)
        try:
            status = await post_webhook(webhook.url, content, headers, self._rules)
            problem = None if 200 <= status < 300 else f"status {status}"
        except (FetchFailed, FetchRefused) as error:
            status, problem = 0, str(error)
        if problem is None or status == GONE or attempts > len(RETRY_AFTER_S):
            await self._store.retry_in_writer(self._store.remove, call.id)
        else:
            retry_at = now + RETRY_AFTER_S[attempts - 1]
            await self._store.retry_in_writer(self._store.retry_at, call.id, attempts, retry_at)
        if problem is not None:
            log.warning("webhook not delivered", call=call.id, attempts=attempts, problem=problem)


def signing_key(secret: bytes, key_id: str) -> bytes:
    """Derive the signing key of one API key. Each has its own, so that no caller can sign for another."""
    return hmac.digest(secret, key_id.encode(), hashlib.sha256)


def shown_key(secret: bytes, key_id: str) -> str:
    """Return the signing key in the form that receivers are given."""
    return f"whsec_{base64.b64encode(signing_key(secret, key_id)).decode()}"


def signature(key: bytes, message_id: str, now: float, content: bytes) -> dict[str, str]:
    """Return the three headers of Standard Webhooks (github.com/standard-webhooks/standard-webhooks, version 1)."""
    timestamp = str(int(now))
    signed = f"{message_id}.{timestamp}.".encode() + content
    digest = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": f"v1,{digest}"}


def _payload(webhook: Webhook) -> bytes:
    state = ended_state(webhook.record)
    at = datetime.fromtimestamp(webhook.record.ended_at or webhook.record.created_at, UTC)
    event = {"type": f"image.job.{state.state}", "timestamp": at.isoformat(), "data": state.model_dump(mode="json")}
    return json.dumps(event).encode()
