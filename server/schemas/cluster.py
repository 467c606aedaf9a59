"""The questions of a cluster's gateways to each other, and their reports for operators."""

from typing import Literal

from pydantic import BaseModel

from server.schemas.health import ReadinessDetails
from server.schemas.listing import Listed, Listing


class EditedFile(BaseModel):
    """A swap that can be undone."""

    source: str
    before: str
    after: str


class ProposedCatalog(BaseModel):
    """A version of the catalog that all gateways are to prepare."""

    change: str
    version: int
    files: dict[str, str]
    weights: dict[str, str]
    edits: list[EditedFile]


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
