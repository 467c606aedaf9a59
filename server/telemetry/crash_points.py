"""Crash points, so that tests can prove what a power cut at the worst moment leaves behind."""

import os
import signal
from dataclasses import dataclass

from server.settings import CrashPoint


@dataclass(frozen=True, slots=True)
class Faults:
    """The named moment at which this server kills itself; None, outside tests."""

    crash_at: CrashPoint | None = None

    def reach(self, point: str) -> None:
        """Called at each named moment of a call's life."""
        if point == self.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
