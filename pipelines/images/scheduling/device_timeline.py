"""How the scheduler follows a device that computes later than it is told to."""

from collections.abc import Callable
from typing import Protocol


class DeviceTimeline(Protocol):
    """Work that is launched on the device, in order. A GPU queues it; a CPU has done it when the launch returns."""

    def catch_up(self) -> None:
        """Block until at most one turn's work is queued: a run that launched more would keep others from the device."""

    def mark(self) -> Callable[[], None]:
        """Mark the work that has been launched, and return a function that blocks until the device has computed it."""


class Synchronous:
    """The timeline of a device that has done its work when a launch returns."""

    def catch_up(self) -> None:
        """Do nothing: no work is queued."""

    def mark(self) -> Callable[[], None]:
        """Return a function that does not block."""
        return lambda: None
