"""Answers like "busy, try again". A retry after one of them is about a call that never ran, and gets a run of its own.

Without this, whoever sends the same prompt twice, has the second call refused for now and tries again, would be given
the first call's picture instead of a second one.
"""

import time
from collections import deque
from collections.abc import Callable

Same = tuple[str, str, str]  # key, endpoint, fingerprint: what equal calls have in common

MOST = 10_000  # answers remembered


class ToldToRetry:
    """How many such answers have been given to equal calls lately, less the retries that have come since."""

    def __init__(self, within_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._within_s = within_s
        self._clock = clock
        self._told: deque[tuple[Same, float]] = deque(maxlen=MOST)  # the oldest first

    def note(self, same: Same) -> None:
        """Somebody has just been told to try again."""
        self._told.append((same, self._clock()))

    def expects(self, same: Same) -> bool:
        """Whether a retry may come for that reason."""
        return any(told == same for told, _ in self._lately())

    def settle(self, same: Same) -> None:
        """It has come, if it was expected."""
        oldest = next((entry for entry in self._lately() if entry[0] == same), None)
        if oldest is not None:
            self._told.remove(oldest)

    def _lately(self) -> deque[tuple[Same, float]]:
        oldest = self._clock() - self._within_s
        while self._told and self._told[0][1] < oldest:
            self._told.popleft()
        return self._told
