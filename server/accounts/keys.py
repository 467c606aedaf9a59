"""API keys. The secret is shown once, when the key is created or rotated; only its hash is stored."""

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict

from sqlalchemy import ColumnElement, exists, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from pipelines.protocol.tiers import ServiceTier
from server.accounts.audit import SERVER, audit, change_row
from server.accounts.db import Database
from server.accounts.db_errors import is_duplicate
from server.accounts.ledger import held_sum
from server.accounts.tables import KeyRow
from server.money import format_money

PREFIX = "sk-dr-"
PRIORITY = "priority"  # the group of no model: the right to the service tier of that name
LONGEST_OVERLAP_S = 90 * 86_400.0  # of the secrets of a rotation


@dataclass(frozen=True, slots=True)
class Key:
    """An API key and its limits. Money is in 1/10000 CNY; None is no limit.

    `budget`: the total that it may ever spend. `monthly_budget`: the most that it may spend in a month (UTC).
    `max_running`: calls that it may have at once; None is the server's default. `per_minute`: calls that it may begin
    in a minute. `keepalive`: send whitespace before JSON answers that take long. `rotating_until`: the secret before
    the last rotation works until then. `team_id` "" is no team.
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
    monthly_budget: int | None = None
    note: str = ""
    rotating_until: datetime | None = None
    team_id: str = ""
    person: str | None = None

    @property
    def state(self) -> Literal["valid", "expired", "revoked"]:
        """Return the state: valid, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= datetime.now(UTC) else "valid"

    def tier(self, asked: object) -> ServiceTier:
        """Return the service tier in which a call is served whose body asks for this one: "priority" needs the group of
        that name, and what is not known here is "default"."""
        name = asked.lower() if isinstance(asked, str) else None
        if name == PRIORITY and PRIORITY in self.groups:
            return "priority"
        return "flex" if name == "flex" else "default"


class KeyChanges(TypedDict, total=False):
    """The fields of a key that can be changed; those that are absent stay."""

    name: str
    groups: frozenset[str]
    budget: int | None
    monthly_budget: int | None
    expires_at: datetime | None
    max_running: int | None
    per_minute: int | None
    keepalive: bool
    note: str
    team_id: str
    person: str


class KeyNotFound(Exception):
    """No key, or more than one, has this id, name or prefix. The message is for people."""


def create_key(
    database: Database,
    name: str,
    groups: frozenset[str],
    budget: int | None = None,
    *,
    limits: KeyChanges | None = None,
    by: str = SERVER,
) -> tuple[Key, str]:
    """Create a key, and return it with its secret, which can't be read again. `by` is the operator, for the audit."""
    secret = _new_secret()
    unset = {**dict.fromkeys(KeyChanges.__annotations__), "keepalive": False, "note": "", "team_id": ""}
    row = KeyRow(
        id=f"key_{uuid.uuid4().hex[:20]}",
        secret_hash=hash_secret(secret),
        tail=secret[-4:],
        created_at=database.clock.now(),
        revoked_at=None,
        **unset | {"name": name, "groups": sorted(groups), "budget": budget} | _columns(limits or {}),
    )
    with database.write() as session:
        session.add(row)
        audit(session, by, "key.create", row.id, **{name: getattr(row, name) for name in KeyChanges.__annotations__})
    return _key(row, database.clock.now()), secret


def set_secret(database: Database, key_id: str, secret: str) -> None:
    """Give a key the secret of a key of another database."""
    with database.write() as session:
        row = session.get_one(KeyRow, key_id)
        row.secret_hash, row.tail = hash_secret(secret), secret[-4:]


def authenticate(database: Database, secret: str) -> Key | None:
    """Return the key of a secret; None when it is unknown, revoked or expired."""
    hashed = hash_secret(secret)
    now = database.clock.now()
    overlaps = KeyRow.previous_until.between(now, now + LONGEST_OVERLAP_S)  # else the clock was ahead at the rotation
    rotated = (KeyRow.previous_hash == hashed) & overlaps
    return _find_usable(database, (KeyRow.secret_hash == hashed) | rotated)


def why_refused(database: Database, secret: str) -> Literal["unknown", "expired", "revoked"]:
    """Return the reason for which `authenticate` finds no key."""
    with database.read() as session:
        row = session.scalar(select(KeyRow).where(KeyRow.secret_hash == hash_secret(secret)))
    if row is None:
        return "unknown"
    return "expired" if row.revoked_at is None else "revoked"


def find_usable_key(database: Database, key_id: str) -> Key | None:
    """Return the key with this id; None when it is unknown, revoked or expired."""
    return _find_usable(database, KeyRow.id == key_id)


def _find_usable(database: Database, condition: ColumnElement[bool]) -> Key | None:
    with database.read() as session:
        row = session.scalar(select(KeyRow).where(condition))
    if row is None or row.revoked_at is not None:
        return None
    if row.expires_at is not None and row.expires_at <= database.clock.now():
        return None
    return _key(row, database.clock.now())


def list_keys(database: Database) -> list[Key]:
    """List all keys, oldest first."""
    with database.read() as session:
        return [_key(row, database.clock.now()) for row in session.scalars(select(KeyRow).order_by(KeyRow.created_at))]


def find_key(database: Database, text: str) -> Key:
    """Return the key with this id or name, else the only one whose id or name begins so. Keys that are not revoked come
    first. Raises KeyNotFound."""
    keys = list_keys(database)
    for matches in (
        [key for key in keys if key.id == text],
        [key for key in keys if key.name == text and key.revoked_at is None],
        [key for key in keys if key.name == text],
        [key for key in keys if text and key.revoked_at is None and key.id.startswith(text)],
        [key for key in keys if text and key.revoked_at is None and key.name.startswith(text)],
        [key for key in keys if text and key.id.startswith(text)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            candidates = ", ".join(f"{key.id} ({key.name})" for key in matches[:5])
            raise KeyNotFound(f"'{text[:60]}' is not unique. It may be: {candidates}.")
    raise KeyNotFound(f"There is no key '{text[:60]}'. `darkroom keys list` shows them.")


def has_keys(database: Database) -> bool:
    """Return whether a key was ever created."""
    with database.read() as session:
        return bool(session.scalar(select(exists(select(KeyRow.id)))))


def update_key(database: Database, key_id: str, changes: KeyChanges, *, by: str) -> Key | None:
    """Change a key, and return it; None when there is no such id. Raises ValueError for a budget below the sum that the
    key has spent."""
    with database.write() as session:
        row = session.get(KeyRow, key_id, with_for_update=True)
        if row is None:
            return None
        _check_budget(session, row, changes.get("budget"))
        change_row(session, by, "key.change", row, _columns(changes))
    return _key(row, database.clock.now())


def rotate_key(database: Database, key_id: str, overlap_s: float, *, by: str) -> tuple[Key, str] | None:
    """Give a key a new secret, and return both; the old one works for `overlap_s` more. None when there is no such id,
    or it is revoked. A rotation within the overlap of another ends the first secret."""
    secret = _new_secret()
    with database.write() as session:
        row = session.get(KeyRow, key_id, with_for_update=True)
        if row is None or row.revoked_at is not None:
            return None
        row.previous_hash, row.previous_until = row.secret_hash, database.clock.earliest() + overlap_s
        row.secret_hash, row.tail = hash_secret(secret), secret[-4:]
        audit(session, by, "key.rotate", key_id, overlap_s=overlap_s)
    return _key(row, database.clock.now()), secret


def revoke_key(database: Database, key_id: str, *, by: str) -> Key | None:
    """Revoke a key, and return it; None when there is no such id. Revoking twice keeps the first date."""
    with database.write() as session:
        row = session.get(KeyRow, key_id)
        if row is None:
            return None
        if row.revoked_at is None:
            row.revoked_at = database.clock.now()
            audit(session, by, "key.revoke", key_id, name=row.name)
    return _key(row, database.clock.now())


def hash_secret(secret: str) -> str:
    """Return the hash of a secret. A plain SHA-256 is enough: the secret has 256 random bits, so it can't be
    guessed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _check_budget(session: Session, row: KeyRow, budget: int | None) -> None:
    if budget is not None and budget < (spent := row.settled + held_sum(session, row.id)):
        raise ValueError(f"This key has spent {format_money(spent)} CNY already: its budget can't be less.")


def _columns(changes: KeyChanges) -> dict[str, Any]:
    """Return the changes as the row has them."""
    columns: dict[str, Any] = dict(changes)
    if "groups" in columns:
        columns["groups"] = sorted(columns["groups"])
    if columns.get("expires_at") is not None:
        columns["expires_at"] = columns["expires_at"].timestamp()
    return columns


def _key(row: KeyRow, now: float) -> Key:
    rotating = row.previous_until is not None and now < row.previous_until <= now + LONGEST_OVERLAP_S
    return row.to(
        Key,
        groups=frozenset(row.groups),
        created_at=_to_datetime(row.created_at),
        expires_at=_to_datetime(row.expires_at),
        revoked_at=_to_datetime(row.revoked_at),
        rotating_until=_to_datetime(row.previous_until) if rotating else None,
    )


def _to_datetime(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


SIGN_IN = "sign-in"  # the operator of these changes, in the audit


def key_of_person(
    database: Database, person: str, name: str, groups: frozenset[str], changes: KeyChanges
) -> Key | None:
    """Return the key of a person, which is made at the first call, with this name and these groups; None if it is
    revoked or has expired. The changes are made at each call."""
    key_id = _find(database, person)
    if key_id is None:
        try:
            made, _ = create_key(database, name, groups, limits={**changes, "person": person}, by=SIGN_IN)
        except IntegrityError as error:
            if not is_duplicate(error.orig):
                raise
            # two browsers at once
            key_id = _find(database, person)
        else:
            return made
    if key_id is None or find_usable_key(database, key_id) is None:
        return None
    return update_key(database, key_id, changes, by=SIGN_IN)


def _find(database: Database, person: str) -> str | None:
    with database.read() as session:
        return session.scalar(select(KeyRow.id).where(KeyRow.person == person))
