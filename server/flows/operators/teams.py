"""Teams for operators: their fields from a request, and their state with their money. All functions block."""

from collections.abc import Mapping
from typing import Any

from server.accounts.db import Database
from server.accounts.teams import Team, TeamChanges, TeamNameTaken, create_team, list_teams, update_team
from server.errors import BadRequest, NotFound
from server.money import format_money, optional_money, parse_money
from server.schemas.keys import ChangeTeam, CreateTeam, TeamEntry


class TeamAdmin:
    """Creates and changes teams."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_all(self) -> list[TeamEntry]:
        """List all teams, by name."""
        return [_entry(team) for team in list_teams(self._database)]

    def create(self, body: CreateTeam, *, by: str) -> TeamEntry:
        """Create a team. Raises BadRequest, also for a name that another has."""
        budget = None if body.monthly_budget is None else read_amount("monthly_budget", body.monthly_budget)
        try:
            team_id = create_team(self._database, body.name, budget, by=by)
        except TeamNameTaken as error:
            raise _taken(body.name) from error
        return _entry(find_team(self._database, team_id))

    def change(self, text: str, body: ChangeTeam, sent: Mapping[str, Any], *, by: str) -> TeamEntry:
        """Change a team, and return it. `sent` are the fields as they were sent: null takes the budget away. Raises
        NotFound and BadRequest, also for a name that another has."""
        team, changes = find_team(self._database, text), TeamChanges()
        if body.name is not None:
            changes["name"] = body.name
        if body.monthly_budget is not None:
            changes["monthly_budget"] = read_amount("monthly_budget", body.monthly_budget)
        elif "monthly_budget" in sent:
            changes["monthly_budget"] = None
        try:
            update_team(self._database, team.id, changes, by=by)
        except TeamNameTaken as error:
            raise _taken(body.name or "") from error
        return _entry(find_team(self._database, team.id))


def find_team(database: Database, text: str) -> Team:
    """Find a team by id or name. Raises NotFound."""
    teams = list_teams(database)
    for team in teams:
        if text in {team.id, team.name}:
            return team
    names = ", ".join(f"'{team.name}'" for team in teams[:20])
    there = f"There are: {names}." if names else "There is none: `darkroom teams create` makes one."
    raise NotFound(f"There is no team '{text[:60]}'. {there}", param="team", code="team_not_found")


def read_amount(name: str, text: str) -> int:
    """Return the units of an amount in the field `name`. Raises BadRequest."""
    try:
        return parse_money(text)
    except ValueError as error:
        raise BadRequest(f"Invalid '{name}': {error}.", param=name) from error


def _taken(name: str) -> BadRequest:
    return BadRequest(f"There is a team '{name}' already.", param="name", code="name_taken")


def _entry(team: Team) -> TeamEntry:
    return TeamEntry.describe(
        team,
        monthly_budget=optional_money(team.monthly_budget),
        spent_this_month=format_money(team.spent_this_month),
        held=format_money(team.held),
        available=optional_money(team.available),
    )
