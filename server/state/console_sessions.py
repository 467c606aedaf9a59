"""Sessions of the console: a browser keeps a random cookie in place of a key. They end with the server."""

import secrets
import time

LIFETIME_S = 12 * 3600
MOST_SESSIONS = 1000


class ConsoleSessions:
    """Who the browsers are that have signed in. At most MOST_SESSIONS: a new one ends the oldest."""

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[str, float]] = {}  # by the cookie, oldest first: who it is, its end

    def open(self, owner: str) -> str:
        """The cookie's value, of 256 random bits."""
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = owner, time.monotonic() + LIFETIME_S
        return cookie

    def owner(self, cookie: str) -> str | None:
        """Whose session it is; None for one that has ended."""
        owner, ends_at = self._sessions.get(cookie, (None, 0.0))
        return owner if time.monotonic() < ends_at else None

    def close(self, cookie: str) -> None:
        self._sessions.pop(cookie, None)
