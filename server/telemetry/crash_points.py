"""Crash points: named moments at which a test can have the server killed, to check the state that a crash leaves
behind."""

import os
import signal
from dataclasses import dataclass

from server.settings import CrashPoint


@dataclass(frozen=True, slots=True)
class CrashPoints:
    """The crash points of a server. `crash_at` is the one at which it kills itself; None outside tests."""

    crash_at: CrashPoint | None = None

    def hit(self, point: str) -> None:
        """Kill the server if this is the point to crash at. Each crash point of a call calls this."""
        if point == self.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
