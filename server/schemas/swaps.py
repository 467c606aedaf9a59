"""Changes of the catalog as jobs."""

from typing import Literal

from server.errors import ErrorDetail
from server.schemas.admin import CatalogChange
from server.schemas.listing import Listed, Listing

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
