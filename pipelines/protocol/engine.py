"""The interface that every engine has, and the server's `EngineHost` too, which forwards each call to a worker."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, TypeVar

from pipelines.protocol.chat import ChatCapabilities
from pipelines.protocol.messages import Capabilities

JobT = TypeVar("JobT", contravariant=True)
SpecT = TypeVar("SpecT", contravariant=True)
EventT = TypeVar("EventT", covariant=True)


class NoDevice(Exception):
    """The device that was asked for is not there; the message says why."""


class Engine(Protocol[JobT, SpecT, EventT]):
    """Runs jobs of one kind. All calls are made on one event loop."""

    def submit(self, job: JobT) -> AsyncIterator[EventT]:
        """Run a job, and yield its events up to the last one."""

    def cancel(self, job_id: str) -> None:
        """Stop a job within one step, or before it starts. Unknown ids are ignored."""

    async def prepare(self, spec: SpecT) -> Capabilities | ChatCapabilities | tuple[str, ...] | None:
        """Load and warm up a checkpoint. Returns what an image or chat checkpoint can do, or notes on another's files.
        Raises CheckpointError, and NotServed where the catalog has dropped one that served meanwhile."""

    def unload_except(self, specs: Sequence[SpecT]) -> None:
        """Evict the checkpoints that the catalog does not name, `specs` being those that it names, once no job needs
        them."""

    async def sleep(self) -> None:
        """Move all weights off the device that no job uses, to the host's memory or altogether."""
