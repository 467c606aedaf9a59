"""Webhooks that are to be sent. A row is written with its call's hold and deleted when it was delivered or given up, so
that none is lost with its server."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, or_, select, update
from sqlalchemy.orm import Session

from server.accounts.calls import CallRecord, call_record
from server.accounts.store import Store, Write
from server.accounts.tables import CallRow, HoldRow, WebhookRow

LONGEST_PAUSE_S = 21_600.0  # before a webhook is tried again
CLAIM_S = 120.0  # longer than a delivery may take: then another server may try


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook that is due: its call has ended. `attempts` were made before."""

    url: str
    attempts: int
    record: CallRecord


class WebhookStore(Store):
    """The webhooks that all servers of a database send."""

    def begin_write(self, call_id: str, url: str) -> Write:
        """Return the write that asks for a webhook at the end of the call."""

        def write(session: Session) -> None:
            session.add(WebhookRow(call_id=call_id, url=url, attempts=0, next_at=0.0))

        return write

    def any_due(self, now: float) -> bool:
        """Return whether `claim_due` would find any. It does not wait for the writer."""
        with self._database.read() as session:
            ended = select(WebhookRow.call_id).join(CallRow, CallRow.id == WebhookRow.call_id)
            due = ended.where(_is_due(now), CallRow.state != "running")
            return session.scalars(due.limit(1)).first() is not None

    def claim_due(self, now: float, limit: int) -> list[Webhook]:
        """Claim webhooks that are due, at most `limit`: no other server gets them for a while."""
        query = (
            select(WebhookRow, CallRow, HoldRow.model)
            .join(CallRow, CallRow.id == WebhookRow.call_id)
            .outerjoin(HoldRow, HoldRow.call_id == CallRow.id)
            .where(_is_due(now), CallRow.state != "running")
            .order_by(WebhookRow.next_at)
            .limit(limit)
            .with_for_update(of=WebhookRow, skip_locked=True)
        )
        with self._database.write() as session:
            claimed = []
            for webhook, call, model in session.execute(query):
                claimed.append(Webhook(webhook.url, webhook.attempts, call_record(call, model)))
                webhook.next_at = now + CLAIM_S
            return claimed

    def retry_at(self, call_id: str, attempts: int, next_at: float) -> None:
        """Record that a webhook failed, and is tried again at `next_at`, in Unix seconds."""
        row = update(WebhookRow).where(WebhookRow.call_id == call_id)
        self._write(row.values(attempts=attempts, next_at=next_at))

    def remove_orphans(self) -> None:
        """Remove the webhooks whose calls are not known any more."""
        known = select(CallRow.id).where(CallRow.id == WebhookRow.call_id).exists()
        self._write(delete(WebhookRow).where(~known))

    def remove(self, call_id: str) -> None:
        """Remove a webhook that was delivered or given up."""
        self._write(delete(WebhookRow).where(WebhookRow.call_id == call_id))


def _is_due(now: float) -> ColumnElement[bool]:
    """Return the condition that a webhook is to be tried: also one that waits for longer than any, since the clock was
    ahead when it failed."""
    return or_(WebhookRow.next_at <= now, WebhookRow.next_at > now + LONGEST_PAUSE_S)
