"""The key of a person who signs in with an account of the organisation. It is charged for what they do there."""

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from server.accounts.db import Database
from server.accounts.db_errors import is_duplicate
from server.accounts.keys import Key, KeyChanges, create_key, find_usable_key, update_key
from server.accounts.tables import KeyRow

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
