"""Teams: keys that share a monthly budget. A team is never deleted, since its charges stay."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.accounts.audit import audit, change_row
from server.accounts.db import Database
from server.accounts.ledger import held_sum_query, settled_in_month
from server.accounts.tables import HoldRow, KeyMonthRow, KeyRow, TeamRow


@dataclass(frozen=True, slots=True)
class Team:
    """A team and its money in 1/10000 CNY. `keys`: how many are in it and not revoked. `spent_this_month` and `held`
    are of calls that its keys made while they were in it; `created_at` in Unix seconds."""

    id: str
    name: str
    monthly_budget: int | None
    created_at: float
    keys: int
    spent_this_month: int
    held: int

    @property
    def available(self) -> int | None:
        """Return the money that the team may still spend this month; None is no limit."""
        return None if self.monthly_budget is None else self.monthly_budget - self.spent_this_month - self.held


class TeamChanges(TypedDict, total=False):
    """The fields of a team that can be changed; those that are absent stay."""

    name: str
    monthly_budget: int | None


class TeamNameTaken(Exception):
    """Another team has this name."""


def create_team(database: Database, name: str, monthly_budget: int | None, *, by: str) -> str:
    """Create a team, and return its id. Raises TeamNameTaken."""
    row = TeamRow(
        id=f"team_{uuid.uuid4().hex[:20]}", name=name, monthly_budget=monthly_budget, created_at=database.clock.now()
    )
    with database.write() as session:
        _require_free(session, name, row.id)
        session.add(row)
        audit(session, by, "team.create", row.id, name=name, monthly_budget=monthly_budget)
    return row.id


def update_team(database: Database, team_id: str, changes: TeamChanges, *, by: str) -> None:
    """Change a team that exists. Raises TeamNameTaken."""
    with database.write() as session:
        row = session.get_one(TeamRow, team_id, with_for_update=True)
        if "name" in changes:
            _require_free(session, changes["name"], team_id)
        change_row(session, by, "team.change", row, changes)


def list_teams(database: Database) -> list[Team]:
    """List all teams with their money, by name."""
    keys = select(func.count()).where(KeyRow.team_id == TeamRow.id, KeyRow.revoked_at.is_(None)).scalar_subquery()
    spent = settled_in_month(KeyMonthRow.team_id == TeamRow.id, database.clock.now())
    query = select(TeamRow, keys, spent, held_sum_query(HoldRow.team_id == TeamRow.id)).order_by(TeamRow.name)
    with database.read() as session:
        return [
            Team(row.id, row.name, row.monthly_budget, row.created_at, *sums) for row, *sums in session.execute(query)
        ]


def team_names(database: Database) -> Mapping[str, str]:
    """Return the names of all teams, by id."""
    with database.read() as session:
        return dict(session.execute(select(TeamRow.id, TeamRow.name)).all())


def _require_free(session: Session, name: str, team_id: str) -> None:
    if session.scalar(select(TeamRow.id).where(TeamRow.name == name, TeamRow.id != team_id)) is not None:
        raise TeamNameTaken(name)
