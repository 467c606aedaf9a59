"""What /healthz and /readyz answer."""

from typing import Literal

from typing_extensions import TypedDict


class Liveness(TypedDict):
    """The process runs."""

    status: Literal["live"]


class WorkerState(TypedDict):
    """A worker process. `device` and `worker_pid` are null while it starts; `problem` says why it can't; `jobs` are
    waiting or running."""

    device: str | None
    problem: str | None
    worker_pid: int | None
    jobs: int


class CheckpointReport(TypedDict):
    """What became of a checkpoint; `detail` says what it is, or why it could not be loaded."""

    state: Literal["loaded", "failed"]
    detail: str


class Readiness(TypedDict):
    """Whether the server takes calls."""

    status: Literal["starting", "ready", "draining"]


class ReadinessDetails(Readiness, WorkerState):
    """The image worker, the chat worker if the server has chat models of its own, and each checkpoint by its name."""

    chat: WorkerState | None
    checkpoints: dict[str, CheckpointReport]
