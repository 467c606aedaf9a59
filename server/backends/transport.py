"""The seam under an `EngineHost`: how a worker comes to be, and how messages reach it.

A worker is a child process here (`child_process`). Anything else that can carry the messages of
`pipelines.protocol.messages` in order, such as an actor on another machine, takes its place by these two interfaces.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from pipelines.protocol.messages import DeviceChoice, FromWorker, ToWorker

NO_MEMORY: Final = "one of its devices ran out of memory"  # the end of a worker whose jobs are told so


class Transport(Protocol):
    """One life of one worker. All calls are made on one event loop."""

    @property
    def pid(self) -> int | None:
        """Return the worker's process id while it lives, if it is on this machine."""

    async def receive(self) -> Sequence[FromWorker]:
        """Wait for the next messages; there are none when the worker's life is over."""

    def send(self, messages: Sequence[ToWorker]) -> None:
        """Send without waiting. Messages that are sent after the end are lost."""

    def kill(self) -> None:
        """End a worker that is stuck; `receive` then returns nothing."""

    async def end_reason(self) -> str:
        """Return the reason of the worker's end, for the log, after `receive` has returned nothing."""

    async def close(self) -> None:
        """End the worker, if it lives, and wait until it has."""


class Launcher(Protocol):
    """Starts workers of one kind, one after another. `owns_worker`: a worker is this server's alone, and ends when its
    transport is closed."""

    owns_worker: bool

    async def open(self, device: DeviceChoice) -> Transport:
        """Start a worker, which is to compute on that device. Raises OSError where it can't be started."""
