"""How the server and its cluster are: health, the queue, findings of the doctor, reports of gateways."""

from typing import Literal

from typing_extensions import TypedDict

from pipelines.protocol.tiers import ServiceTier
from server.schemas.base import Answer, Listed, Listing

# read-only: the database takes no writes, so no call that costs
ServerState = Literal["starting", "ready", "read-only", "draining"]


class Liveness(TypedDict):
    """The process runs."""

    status: Literal["live"]


class WorkerState(TypedDict):
    """A worker process. `device` and `worker_pid` are null while it starts, and `problem` says why the one before it
    ended, or once it is up what is wrong with its machine; `jobs` are waiting or running. While it is `asleep` its
    weights are off the device, and the first call wakes it; `wake_s` estimates how long a call waits for that, 0 if
    nothing has left the device."""

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
    checkpoints that it could not load, or is left out for, with the reason."""

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


class Finding(Answer):
    """A check. `ok` null: nothing is wrong, but look at it."""

    name: str
    ok: bool | None
    detail: str


class Findings(Answer):
    """All checks."""

    object: Literal["list"] = "list"
    data: list[Finding]


class QueuedJob(Listed):
    """A job that runs or waits. `position` is 0 on the device, else its place in the queue; `estimated_s` until it
    ends. A chat is queued until its model takes it, or until the first of its answer comes from another server;
    `tokens` are those that it has written so far, where a piece of several counts once. Values that are not known are
    null. A comparison of checkpoints, a `grid`, is an operator's, whose name stands for the key's, and counts images as
    steps."""

    object: Literal["job"] = "job"
    kind: Literal["image", "response", "chat", "grid"]
    key_id: str
    key_name: str
    endpoint: str
    model: str | None
    state: Literal["queued", "running"]
    created_at: float
    position: int | None = None
    estimated_s: float | None = None
    step: int | None = None
    steps: int | None = None
    size: str | None = None
    service_tier: ServiceTier = "default"
    tokens: int | None = None


class QueuedJobList(Listing[QueuedJob]):
    """All jobs, in the order in which they began."""


class MemoryReport(Answer):
    """The memory that a worker uses, in bytes: of the host, and of its GPU if it has one. `gpu_used_bytes` are those
    that all programs use, of `gpu_total_bytes`."""

    host_bytes: int
    gpu_bytes: int | None
    gpu_used_bytes: int | None
    gpu_total_bytes: int | None


class WorkerReport(Answer):
    """A worker process. While it is replaced, `pid` is null, and `problem` says why it ended; once it is up, what is
    wrong with its machine. `sleep` says whether its
    weights are off the device, `wake_s` how long a call would wait for them, `can_sleep` whether this server may send
    it to sleep."""

    name: str
    kind: str
    device: str | None
    pid: int | None
    ready: bool
    jobs: int
    restarts: int
    problem: str | None
    memory: MemoryReport | None
    sleep: Literal["awake", "asleep", "waking"]
    wake_s: float
    can_sleep: bool


class QueueSnapshot(Answer):
    """An event of the queue: everything as it is now."""

    type: Literal["queue.snapshot"] = "queue.snapshot"
    jobs: list[QueuedJob]
    workers: list[WorkerReport]


class CancelledJob(Answer):
    """The job has ended."""

    object: Literal["job.cancelled"] = "job.cancelled"
    id: str


class BackupFile(Answer):
    """A file with what the server needs, but for what `left_out` names."""

    object: Literal["backup"] = "backup"
    path: str
    bytes: int
    pictures: int
    schema_version: str
    left_out: list[str]


class Disk(Answer):
    """Room on the disk of the server's home."""

    free_bytes: int
    total_bytes: int


class ServerStatus(Answer):
    """The server: its version, its workers, its disk, its settings."""

    object: Literal["status"] = "status"
    version: str
    started_at: float
    draining: bool
    workers: list[WorkerReport]
    disk: Disk
    database: str
    policy: str | None
    keep_prompts: bool
    calls_keep_days: float
    results_keep_days: float | None
    storage_problem: str | None  # why files stay in the storage that should go


class GatewayCard(Listed):
    """A server. `id` changes with every start; `url` is where the others reach it, null for one that is the only one.
    `alive`: it renews its lease. `state` is that of its /readyz, null if it does not answer."""

    object: Literal["gateway"] = "gateway"
    url: str | None
    asked: bool
    started_at: float
    alive: bool
    catalog_version: int | None
    state: ReadinessDetails | None


class GatewayList(Listing[GatewayCard]):
    """The servers of the database, oldest first. `asked` marks the one that answers."""
