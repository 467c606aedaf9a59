"""What bounds the host of a worker: its jobs, the worker's silence and sleep, and how soon it is started again."""

from dataclasses import dataclass

from server.backends.watchdog import SILENCE_S

HEALTHY_UPTIME_S = 30.0  # after which a death is not counted as a failed start
MAX_DELAY_S = 10.0


@dataclass(frozen=True, slots=True)
class HostLimits:
    """How many jobs a host takes and how many of them share the device; after how long without a sign its worker is
    taken for dead, and after how long without a job it sleeps (worker_sleep.py)."""

    jobs: int
    concurrency: int = 1
    silence_s: float = SILENCE_S
    idle_unload_s: float | None = None


class RestartDelay:
    """The pause before a worker is started again: it doubles while workers die soon after their start."""

    def __init__(self) -> None:
        self._delay_s = 0.0

    def after_s(self, uptime_s: float) -> float:
        """Return the pause after a worker that lived so long, in seconds."""
        was_healthy = uptime_s > HEALTHY_UPTIME_S
        self._delay_s = 0.0 if was_healthy else min(MAX_DELAY_S, 2 * self._delay_s + 0.25)
        return self._delay_s
