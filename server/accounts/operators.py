"""Operators: admin keys by name, so that the audit says who changed what. A secret is shown once."""

import secrets
import time
import uuid
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, delete, select

from server.accounts.audit import audit
from server.accounts.db import Database
from server.accounts.keys import hash_secret
from server.accounts.operator_tables import OperatorRow
from server.accounts.store import Store
from server.accounts.tables import ConsoleSessionRow

PREFIX = "admin-"


@dataclass(frozen=True, slots=True)
class Operator:
    """An admin key. Times are Unix seconds."""

    id: str
    name: str
    tail: str
    created_at: float
    revoked_at: float | None


class NameTaken(Exception):
    """Another operator has this name."""


def create_operator(database: Database, name: str, *, by: str) -> tuple[Operator, str]:
    """Create an operator, and return it with its secret, which can't be read again. Raises NameTaken."""
    secret = PREFIX + secrets.token_urlsafe(32)
    row = OperatorRow(
        id=f"adm_{uuid.uuid4().hex[:20]}",
        name=name,
        secret_hash=hash_secret(secret),
        tail=secret[-4:],
        created_at=time.time(),
        revoked_at=None,
    )
    with database.write() as session:
        taken = select(OperatorRow.id).where(OperatorRow.name == name, OperatorRow.revoked_at.is_(None))
        if session.scalar(taken) is not None:
            raise NameTaken(name)
        session.add(row)
        audit(session, by, "operator.create", row.id, name=name)
    return row.to(Operator), secret


def authenticate_operator(database: Database, secret: str) -> Operator | None:
    """Return the operator of a secret; None when it is unknown or revoked."""
    with database.read() as session:
        row = session.scalar(select(OperatorRow).where(OperatorRow.secret_hash == hash_secret(secret)))
    return None if row is None or row.revoked_at is not None else row.to(Operator)


def find_operator(database: Database, operator_id: str) -> Operator | None:
    """Return the operator with this id; None when it is unknown or revoked."""
    with database.read() as session:
        row = session.get(OperatorRow, operator_id)
    return None if row is None or row.revoked_at is not None else row.to(Operator)


def list_operators(database: Database) -> list[Operator]:
    """List all operators, oldest first."""
    with database.read() as session:
        return [row.to(Operator) for row in session.scalars(select(OperatorRow).order_by(OperatorRow.created_at))]


def revoke_operator(database: Database, id_or_name: str, *, by: str) -> Operator | None:
    """Revoke an operator, and return it; None when there is no such operator that is not revoked already."""
    with database.write() as session:
        named = (OperatorRow.id == id_or_name) | (OperatorRow.name == id_or_name)
        row = session.scalar(select(OperatorRow).where(named, OperatorRow.revoked_at.is_(None)))
        if row is None:
            return None
        row.revoked_at = time.time()
        audit(session, by, "operator.revoke", row.id, name=row.name)
    return row.to(Operator)


LIFETIME_S = 12 * 3600
MOST_SESSIONS = 50  # of one subject: others can not end them


class ConsoleSessions(Store):
    """The sessions of the browsers that have signed in. A subject has at most MOST_SESSIONS: a new one ends its
    oldest."""

    def open(self, subject: str) -> str:
        """Open a session, and return its cookie's value, of 256 random bits. A browser's oldest session ends if there
        are too many."""
        cookie = secrets.token_urlsafe(32)
        with self._database.write() as session:
            now = self._database.lease_now(session)
            session.execute(delete(ConsoleSessionRow).where(~_is_open(now)))
            mine = ConsoleSessionRow.subject == subject
            newest = select(ConsoleSessionRow.ends_at).where(mine).order_by(ConsoleSessionRow.ends_at.desc())
            if (oldest := session.scalar(newest.offset(MOST_SESSIONS - 1).limit(1))) is not None:
                session.execute(delete(ConsoleSessionRow).where(mine, ConsoleSessionRow.ends_at <= oldest))
            row = ConsoleSessionRow(cookie_hash=hash_secret(cookie), subject=subject, ends_at=now + LIFETIME_S)
            session.add(row)
        return cookie

    def subject(self, cookie: str) -> str | None:
        """Return the subject of a session; None for one that has ended."""
        with self._database.read() as session:
            mine = ConsoleSessionRow.cookie_hash == hash_secret(cookie)
            now = self._database.lease_now(session)
            return session.scalar(select(ConsoleSessionRow.subject).where(mine, _is_open(now)))

    def close(self, cookie: str) -> None:
        """Delete the session of this cookie."""
        self._write(delete(ConsoleSessionRow).where(ConsoleSessionRow.cookie_hash == hash_secret(cookie)))


def _is_open(now: float) -> ColumnElement[bool]:
    """Return the condition that a session goes on: one that would for longer than any was opened while the clock was
    ahead."""
    return and_(ConsoleSessionRow.ends_at > now, ConsoleSessionRow.ends_at <= now + LIFETIME_S)
