"""Sessions of the console: they end, and their number is bounded."""

import pytest

from server.state import console_sessions
from server.state.console_sessions import LIFETIME_S, MOST_SESSIONS, ConsoleSessions


def test_a_session_is_of_one_key_until_it_is_closed() -> None:
    sessions = ConsoleSessions()
    mine, other = sessions.open("key_1"), sessions.open("key_2")
    assert (sessions.owner(mine), sessions.owner(other)) == ("key_1", "key_2")
    sessions.close(mine)
    sessions.close("unknown")
    assert [sessions.owner(cookie) for cookie in (mine, other, "")] == [None, "key_2", None]


def test_a_session_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(console_sessions.time, "monotonic", lambda: now[0])
    sessions = ConsoleSessions()
    cookie = sessions.open("key_1")
    now[0] += LIFETIME_S - 1
    assert sessions.owner(cookie) == "key_1"
    now[0] += 1
    assert sessions.owner(cookie) is None


def test_many_sessions_end_the_oldest() -> None:
    sessions = ConsoleSessions()
    cookies = [sessions.open("key_1") for _ in range(MOST_SESSIONS + 2)]
    assert [sessions.owner(cookie) for cookie in cookies[:3]] == [None, None, "key_1"]
