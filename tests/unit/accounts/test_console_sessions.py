"""Sessions of the console: they end, their number is bounded, and no cookie is stored."""

import pytest
from sqlalchemy import text

from server.accounts import operators
from server.accounts.db import Database
from server.accounts.operators import ConsoleSessions


def test_a_session_is_of_one_subject_until_it_is_closed(database: Database) -> None:
    sessions = ConsoleSessions(database)
    mine, other = sessions.open("key_1"), sessions.open("key_2")
    assert (sessions.subject(mine), ConsoleSessions(database).subject(other)) == ("key_1", "key_2")
    sessions.close(mine)
    sessions.close("unknown")
    assert [sessions.subject(cookie) for cookie in (mine, other, "")] == [None, "key_2", None]
    with database.read() as session:
        assert other not in str(session.execute(text("SELECT * FROM console_sessions")).all())


def test_a_session_ends_by_itself(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = ConsoleSessions(database)
    with monkeypatch.context() as patch:
        patch.setattr(operators, "LIFETIME_S", 0)
        ended = sessions.open("key_1")
    assert sessions.subject(ended) is None
    lasting = sessions.open("key_1")
    assert [sessions.subject(cookie) for cookie in (lasting, ended)] == ["key_1", None]


def test_many_sessions_of_one_end_its_oldest(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MOST_SESSIONS", 3)
    sessions = ConsoleSessions(database)
    operator = sessions.open("operator:jo")
    cookies = [sessions.open("key_1") for _ in range(5)]
    assert [sessions.subject(cookie) for cookie in cookies] == [None, None, "key_1", "key_1", "key_1"]
    assert sessions.subject(operator) == "operator:jo"
