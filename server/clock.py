"""The server's clocks. The system's may be set while the server runs, by days and both ways; leases and retention must
not follow: running calls would be given up, and records that a retry asks for would be deleted."""

import time

DAY_S = 86_400.0


class Clock:
    """Unix seconds, from the system's clock at the start of the process; `follow` puts another clock in its place.

    Servers that share a database follow the database's clock, so that their own may differ.
    """

    def __init__(self) -> None:
        self._started_at = time.time() - _elapsed_s()
        self._followed_at: float | None = None  # when the followed clock was 0, by what has elapsed

    def follow(self, now: float) -> None:
        """Follow another clock, which says `now`. Called again, it corrects the drift since."""
        at = now - _elapsed_s()
        if self._followed_at is None:
            self._started_at = at
        self._followed_at = at

    def now(self) -> float:
        """Return the time of the followed clock, else the system's: for the times that are written down."""
        return time.time() if self._followed_at is None else self._followed_at + _elapsed_s()

    def steady(self) -> float:
        """Return a time that goes on evenly, also when the other clocks are set: for times that are written and
        compared by this process alone."""
        return self._started_at + _elapsed_s()

    def earliest(self) -> float:
        """Return the earlier of `now` and `steady`: for the age of a time that was written down. A clock that was set
        makes nothing look older than it is."""
        return min(self.now(), self.steady())

    def latest(self) -> float:
        """Return the later of both: what lies ahead of it was written while a clock was ahead."""
        return max(self.now(), self.steady())


def _elapsed_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # a suspended machine's time counts
