"""API keys: made once, shown once, kept as a hash."""

import hashlib
import secrets
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

from sqlalchemy import exists, select

from server.accounts.db import Database
from server.accounts.ledger import used
from server.accounts.money import format_money
from server.accounts.tables import KeyRow

PREFIX = "sk-dr-"


@dataclass(frozen=True, slots=True)
class Key:
    """What a key may do. The budget is all that it may ever spend, in 1/10000 CNY; None is no limit.

    `max_running` is how many calls it may have at once; None is the server's own limit. `per_minute` is how many it may
    begin in a minute; None is no limit. `keepalive` asks for whitespace before JSON answers that take long.
    """

    id: str
    name: str
    tail: str
    groups: frozenset[str]
    budget: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    max_running: int | None
    per_minute: int | None
    keepalive: bool


class KeyChanges(TypedDict, total=False):
    """What of a key is to be set, and to what."""

    budget: int | None
    max_running: int | None
    per_minute: int | None
    keepalive: bool


def create_key(
    database: Database,
    name: str,
    groups: frozenset[str],
    budget: int | None = None,
    expires_at: datetime | None = None,
) -> tuple[Key, str]:
    """A new key and its secret, which nobody can read again."""
    secret = PREFIX + secrets.token_urlsafe(32)
    row = KeyRow(
        id=f"key_{uuid.uuid4().hex[:20]}",
        name=name,
        secret_hash=_hash(secret),
        tail=secret[-4:],
        groups=sorted(groups),
        budget=budget,
        created_at=time.time(),
        expires_at=expires_at.timestamp() if expires_at else None,
        revoked_at=None,
        max_running=None,
        per_minute=None,
        keepalive=False,
    )
    with database.write() as session:
        session.add(row)
    return _key(row), secret


def authenticate(database: Database, secret: str) -> Key | None:
    """The key of a secret; None when it is unknown, revoked or expired."""
    with database.read() as session:
        row = session.scalar(select(KeyRow).where(KeyRow.secret_hash == _hash(secret)))
    if row is None or row.revoked_at is not None:
        return None
    if row.expires_at is not None and row.expires_at <= time.time():
        return None
    return _key(row)


def list_keys(database: Database) -> list[Key]:
    """All keys, oldest first."""
    with database.read() as session:
        return [_key(row) for row in session.scalars(select(KeyRow).order_by(KeyRow.created_at))]


def any_keys(database: Database) -> bool:
    """Whether a key was ever made."""
    with database.read() as session:
        return bool(session.scalar(select(exists(select(KeyRow.id)))))


def change_key(database: Database, key_id: str, changes: KeyChanges) -> Key | None:
    """Set these and leave the rest. None when there is no such id. Raises ValueError for a budget that is overspent."""
    with database.write() as session:
        row = session.get(KeyRow, key_id, with_for_update=True)
        if row is None:
            return None
        budget = changes.get("budget")
        if budget is not None and budget < (spent := used(session, key_id)):
            raise ValueError(f"This key has spent {format_money(spent)} CNY already: its budget can't be less.")
        for name, value in changes.items():
            setattr(row, name, value)
    return _key(row)


def revoke_key(database: Database, key_id: str) -> Key | None:
    """End a key, or None when there is no such id. Revoking twice keeps the first time."""
    with database.write() as session:
        row = session.get(KeyRow, key_id)
        if row is None:
            return None
        row.revoked_at = row.revoked_at or time.time()
    return _key(row)


def _hash(secret: str) -> str:
    """A plain hash is enough: the secret has 256 random bits, so there is nothing to guess."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(row: KeyRow) -> Key:
    return Key(
        id=row.id,
        name=row.name,
        tail=row.tail,
        groups=frozenset(row.groups),
        budget=row.budget,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
        expires_at=_moment(row.expires_at),
        revoked_at=_moment(row.revoked_at),
        max_running=row.max_running,
        per_minute=row.per_minute,
        keepalive=row.keepalive,
    )


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
