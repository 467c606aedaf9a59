"""Teams as operators see them. Money is text in CNY, times are Unix seconds; null is no limit."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from server.schemas.keys import Amount, Name
from server.schemas.listing import Listed, Listing


class TeamEntry(Listed):
    """A team: keys that share a monthly budget. `keys` counts those that are not revoked; `spent_this_month` and `held`
    are of calls that keys made while they were in the team."""

    object: Literal["team"] = "team"
    name: str
    created_at: float
    keys: int
    monthly_budget: str | None
    spent_this_month: str
    held: str
    available: str | None


class TeamList(Listing[TeamEntry]):
    """All teams, by name."""


class CreateTeam(BaseModel):
    """POST /admin/teams. Without `monthly_budget` the team has no limit."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    monthly_budget: Amount | None = None


class ChangeTeam(BaseModel):
    """PATCH /admin/teams/{team}. Fields that are not sent stay; null takes the budget away."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    monthly_budget: Amount | None = None
