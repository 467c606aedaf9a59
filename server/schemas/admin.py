"""Bodies and answers of the admin routes: changes of the catalog as jobs, sleep and wake."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from server.errors import ErrorDetail
from server.schemas.base import Answer, Listed, Listing

Setting = int | float | str | dict[str, bool | int | float | str] | None


class SwapRequest(BaseModel):
    """POST /admin/swap."""

    model: str = Field(min_length=1)
    checkpoint: str = Field(min_length=1)
    keep_settings: bool = False


class ChangedSetting(Answer):
    """A key of the catalog file that a swap changed, and why. `new` is null for one that it left out."""

    key: str
    old: Setting
    new: Setting
    why: str


class KeptSetting(Answer):
    """A key of the catalog file that a swap left as it was, and why."""

    key: str
    old: Setting
    why: str


class CatalogChange(Answer):
    """The changes of a swap, an undo or a reload. `loaded` describes each new checkpoint, by name; `settings` are those
    that a swap fitted to it, and `kept` those that have to do with it and stay."""

    object: Literal["catalog.change"] = "catalog.change"
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    loaded: dict[str, str]
    settings: tuple[ChangedSetting, ...]
    kept: tuple[KeptSetting, ...]
    saved: bool


Action = Literal["swap", "undo", "reload"]
Stage = Literal["waiting", "inspecting", "loading", "hashing", "writing", "done"]


class CatalogJob(Listed):
    """A swap, an undo or a reload. It waits for the one before it, then `stage` says how far it is. `change` is there
    when it has succeeded, `error` when it has failed; then nothing has changed."""

    object: Literal["catalog.job"] = "catalog.job"
    action: Action
    model: str | None
    checkpoint: str | None
    operator: str
    state: Literal["running", "succeeded", "failed"]
    stage: Stage
    created_at: float
    ended_at: float | None
    change: CatalogChange | None
    error: ErrorDetail | None


class CatalogJobList(Listing[CatalogJob]):
    """The changes since the server's start, newest first."""


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
