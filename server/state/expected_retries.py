"""Answers such as "busy, try again". A retry after one of them is for a call that never ran, and gets a run of its own.

Without this, a client that sends one prompt twice, has the second call refused for now and retries it, would get the
first call's image instead of a second one.
"""

import time
from collections import deque
from collections.abc import Callable

CallIdentity = tuple[str, str, str]  # key, endpoint, fingerprint: equal for equal calls

MAX_REMEMBERED = 10_000


class ExpectedRetries:
    """Counts the answers that ask for a retry, by equal calls, within the last `window_s`, less the retries that came
    since."""

    def __init__(self, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._expected: deque[tuple[CallIdentity, float]] = deque(maxlen=MAX_REMEMBERED)  # oldest first

    def add(self, identity: CallIdentity) -> None:
        """Record that a client was asked to retry this call."""
        self._expected.append((identity, self._clock()))

    def contains(self, identity: CallIdentity) -> bool:
        """Return whether a retry of this call is expected."""
        return any(expected == identity for expected, _ in self._drop_expired())

    def consume(self, identity: CallIdentity) -> None:
        """Record that a retry of this call came: it is no longer expected."""
        oldest = next((entry for entry in self._drop_expired() if entry[0] == identity), None)
        if oldest is not None:
            self._expected.remove(oldest)

    def _drop_expired(self) -> deque[tuple[CallIdentity, float]]:
        oldest = self._clock() - self._window_s
        while self._expected and self._expected[0][1] < oldest:
            self._expected.popleft()
        return self._expected
