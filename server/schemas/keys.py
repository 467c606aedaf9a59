"""Keys and teams as operators see them. Money is text in CNY, times are Unix seconds; null is no limit."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.schemas.base import Listed, Listing
from server.schemas.validation import AMOUNT

Name = Annotated[str, Field(min_length=1, max_length=200)]
Amount = Annotated[str, Field(pattern=AMOUNT)]
MAX_OVERLAP_S = 90 * 86_400.0


class OwnKey(Listed):
    """A key, its limits and its money. `available` is the least that its budgets and its team's leave."""

    object: Literal["key"] = "key"
    name: str
    team: str | None
    groups: list[str]
    created_at: float
    expires_at: float | None
    budget: str | None
    monthly_budget: str | None
    spent: str
    spent_this_month: str
    held: str
    available: str | None
    max_running: int
    running: int
    per_minute: int | None
    last_used_at: float | None
    keepalive: bool


class KeyEntry(Listed):
    """A key as operators see it. `max_running` null is the server's default; `rotating_until`: the secret before the
    last rotation works until then; `person`: who signs in with it to the console, by an account of the organisation."""

    object: Literal["key"] = "key"
    name: str
    tail: str
    state: Literal["valid", "expired", "revoked"]
    team: str | None
    person: str | None
    groups: list[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    rotating_until: float | None
    budget: str | None
    monthly_budget: str | None
    spent: str
    spent_this_month: str
    held: str
    available: str | None
    max_running: int | None
    per_minute: int | None
    last_used_at: float | None
    keepalive: bool
    note: str


class KeyList(Listing[KeyEntry]):
    """All keys, oldest first."""


class KeyWithSecret(KeyEntry):
    """A new or rotated key. The secret is shown only now: the database stores its hash."""

    secret: str


class KeyFields(BaseModel):
    """The fields of a key that can be set. Of `expires_at` (Unix seconds) and `days` (from now) one may be sent; `team`
    is the id or the name of one."""

    model_config = ConfigDict(extra="forbid")

    team: Name | None = None
    groups: Annotated[list[str], Field(min_length=1)] | None = None
    budget: Amount | None = None
    monthly_budget: Amount | None = None
    expires_at: Annotated[float, Field(gt=0, lt=1e11)] | None = None
    days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    max_running: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    keepalive: bool | None = None
    note: Annotated[str, Field(max_length=500)] | None = None


class CreateKey(KeyFields):
    """POST /admin/keys. Without `groups` the key may use every model."""

    name: Name


class ChangeKey(KeyFields):
    """PATCH /admin/keys/{key}. Fields that are not sent stay; null takes a limit away, or the team."""

    name: Name | None = None


class RotateKey(BaseModel):
    """POST /admin/keys/{key}/rotate. The old secret works for `overlap_s` more."""

    model_config = ConfigDict(extra="forbid")

    overlap_s: Annotated[float, Field(ge=0, le=MAX_OVERLAP_S)] = 86_400.0


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
