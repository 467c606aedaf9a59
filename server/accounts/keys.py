"""API keys. The secret is shown once, when the key is created; only its hash is stored."""

import hashlib
import secrets
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

from sqlalchemy import ColumnElement, exists, select

from server.accounts.db import Database
from server.accounts.ledger import spent_and_held
from server.accounts.money import format_money
from server.accounts.tables import KeyRow

PREFIX = "sk-dr-"


@dataclass(frozen=True, slots=True)
class Key:
    """An API key and its limits. `budget` is the total that it may ever spend, in 1/10000 CNY; None is no limit.

    `max_running`: calls that it may have at once; None is the server's default. `per_minute`: calls that it may begin
    in a minute; None is no limit. `keepalive`: send whitespace before JSON answers that take long.
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
    """The fields of a key that can be changed; those that are absent stay."""

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
    """A new key and its secret, which can't be read again."""
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
    return _find_usable(database, KeyRow.secret_hash == _hash(secret))


def find_usable_key(database: Database, key_id: str) -> Key | None:
    """The key with this id; None when it is unknown, revoked or expired."""
    return _find_usable(database, KeyRow.id == key_id)


def _find_usable(database: Database, condition: ColumnElement[bool]) -> Key | None:
    with database.read() as session:
        row = session.scalar(select(KeyRow).where(condition))
    if row is None or row.revoked_at is not None:
        return None
    if row.expires_at is not None and row.expires_at <= time.time():
        return None
    return _key(row)


def list_keys(database: Database) -> list[Key]:
    """Oldest first."""
    with database.read() as session:
        return [_key(row) for row in session.scalars(select(KeyRow).order_by(KeyRow.created_at))]


def has_keys(database: Database) -> bool:
    """Whether a key was ever created."""
    with database.read() as session:
        return bool(session.scalar(select(exists(select(KeyRow.id)))))


def update_key(database: Database, key_id: str, changes: KeyChanges) -> Key | None:
    """None when there is no such id. Raises ValueError for a budget below what the key has spent."""
    with database.write() as session:
        row = session.get(KeyRow, key_id, with_for_update=True)
        if row is None:
            return None
        budget = changes.get("budget")
        if budget is not None and budget < (spent := spent_and_held(session, key_id)):
            raise ValueError(f"This key has spent {format_money(spent)} CNY already: its budget can't be less.")
        for name, value in changes.items():
            setattr(row, name, value)
    return _key(row)


def revoke_key(database: Database, key_id: str) -> Key | None:
    """None when there is no such id. Revoking twice keeps the first date."""
    with database.write() as session:
        row = session.get(KeyRow, key_id)
        if row is None:
            return None
        row.revoked_at = row.revoked_at or time.time()
    return _key(row)


def _hash(secret: str) -> str:
    """A plain SHA-256 is enough: the secret has 256 random bits, so it can't be guessed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(row: KeyRow) -> Key:
    return Key(
        id=row.id,
        name=row.name,
        tail=row.tail,
        groups=frozenset(row.groups),
        budget=row.budget,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
        expires_at=_to_datetime(row.expires_at),
        revoked_at=_to_datetime(row.revoked_at),
        max_running=row.max_running,
        per_minute=row.per_minute,
        keepalive=row.keepalive,
    )


def _to_datetime(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
