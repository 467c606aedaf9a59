"""The answers of /healthz and /readyz."""

from typing import Literal

from typing_extensions import TypedDict

# read-only: the database takes no writes, so no call that costs
ServerState = Literal["starting", "ready", "read-only", "draining"]


class Liveness(TypedDict):
    """The process runs."""

    status: Literal["live"]


class WorkerState(TypedDict):
    """A worker process. `device` and `worker_pid` are null while it starts, and `problem` says why the one before it
    ended; `jobs` are waiting or running. While it is `asleep` its weights are off the device, and the first call wakes
    it; `wake_s` estimates how long a call waits for that, 0 if nothing has left the device."""

    device: str | None
    problem: str | None
    worker_pid: int | None
    jobs: int
    sleep: Literal["awake", "asleep", "waking"]
    wake_s: float


class LoadedWeights(TypedDict):
    """Weights in memory, under the name of one of the checkpoints that share them: on the device, or beside it in the
    host's memory."""

    name: str
    bytes: int
    on_device: bool


class ImageWorkerState(WorkerState):
    """One of the image workers: its estimated work, its weights and their limit (null until some are loaded), and the
    checkpoints that it could not load, with the reason."""

    name: str
    ready: bool
    restarts: int
    work_s: float
    weights_bytes: int
    weights_budget_bytes: int | None
    checkpoints: list[LoadedWeights]
    failed: dict[str, str]


class CheckpointReport(TypedDict):
    """The state of a checkpoint; `detail` describes it, or says why it could not be loaded. An asleep one is loaded by
    the next call that needs it."""

    state: Literal["loaded", "failed", "asleep"]
    detail: str


class SharedCatalog(TypedDict):
    """Of several servers: the version of their catalog that this one serves, and why it can't serve a newer one."""

    version: int
    problem: str | None


class Readiness(TypedDict):
    """Whether the server takes calls."""

    status: ServerState


class ReadinessDetails(Readiness, WorkerState):
    """The first image worker, all of them in `image`, the chat worker if the server has chat models of its own, the
    classifiers' if the policy has some, each checkpoint by its name, the names of each model's checkpoints there, and
    the catalog if several servers share one. If what is known of several checkpoints of a name differs, each has its
    catalog file beside its name."""

    image: list[ImageWorkerState]
    chat: WorkerState | None
    classify: WorkerState | None
    checkpoints: dict[str, CheckpointReport]
    models: dict[str, list[str]]
    catalog: SharedCatalog | None
