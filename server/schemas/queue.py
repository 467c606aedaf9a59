"""The jobs of a server, and the server itself, as operators see them."""

from typing import Literal

from pipelines.protocol.tiers import ServiceTier
from server.schemas.answer import Answer
from server.schemas.listing import Listed, Listing


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
    """A worker process. While it is replaced, `pid` is null, and `problem` says why it ended. `sleep` says whether its
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
