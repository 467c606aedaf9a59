"""What /admin/sleep and /admin/wake take and answer."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from server.schemas.listing import Listed, Listing

WorkerNames = Annotated[list[str] | None, Field(min_length=1, description="Names of workers, by default all.")]


class WakeRequest(BaseModel):
    """POST /admin/wake."""

    workers: WorkerNames = None


class SleepRequest(WakeRequest):
    """POST /admin/sleep. To the `disk` the worker's process ends, and nothing of it is left on the device or on the
    host; to the `host` the weights wait in the host's memory, from where they are back sooner."""

    to: Literal["disk", "host"] = "disk"


class SleepingWorker(Listed):
    """A worker that can sleep; `id` is its name. `place` is where its weights are while it sleeps. `sleeps_after_jobs`:
    it was told to sleep and has `jobs` to end first. `wake_s` estimates how long it takes until a call's checkpoint is
    back, 0 if none has left the device."""

    object: Literal["worker"] = "worker"
    kind: Literal["image", "chat", "classify"]
    state: Literal["awake", "asleep", "waking"]
    place: Literal["disk", "host"] | None
    sleeps_after_jobs: bool
    jobs: int
    wake_s: float


class SleepingWorkers(Listing[SleepingWorker]):
    """The workers that were named."""
