"""The server's clocks. The system's may be set while the server runs, by days and both ways; leases and retention must
not follow: what still runs would be given up, and what a retry asks for would be deleted."""

import time


class Clock:
    """Unix seconds, from the system's clock at the start of the process."""

    def __init__(self) -> None:
        self._started_at = time.time() - _elapsed_s()

    def steady(self) -> float:
        """Runs on whatever happens to the system's clock: for what is written and compared by this process alone."""
        return self._started_at + _elapsed_s()

    def cautious(self) -> float:
        """The earlier of this and the system's clock: for the age of what has the system's time. A clock that was set
        makes nothing look older than it is."""
        return min(time.time(), self.steady())


def _elapsed_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # a suspended machine's time counts
