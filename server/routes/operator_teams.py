"""/admin/teams: keys that share a monthly budget. They need an admin key."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from server.flows.operators.teams import TeamAdmin
from server.http import examples
from server.http.bodies import JsonBody
from server.http.deps import ServicesDep
from server.http.openapi import errors, json_body
from server.http.operators import OperatorName, operator
from server.schemas.keys import ChangeTeam, CreateTeam, TeamEntry, TeamList
from server.schemas.validation import parse_json, validate

router = APIRouter(prefix="/admin", dependencies=[Depends(operator)])

TeamRef = Annotated[str, Path(description="The team's id or name.")]
NewTeam = Annotated[CreateTeam, Depends(JsonBody(CreateTeam, examples.CREATE_TEAM))]


def team_admin(services: ServicesDep) -> TeamAdmin:
    """Return the administration of teams."""
    return TeamAdmin(services.stores.database)


Teams = Annotated[TeamAdmin, Depends(team_admin)]


@router.get("/teams", response_description="The teams.")
async def list_teams(teams: Teams, services: ServicesDep) -> TeamList:
    """List teams.

    Lists the teams with their budgets and what their keys spent this month.
    """
    return TeamList.of(await services.stores.database.in_reader(teams.list_all))


@router.post("/teams", response_description="The team.")
async def create_team(body: NewTeam, teams: Teams, services: ServicesDep, by: OperatorName) -> TeamEntry:
    """Create a team.

    Makes a team. Keys are put into it with their field `team`.
    """
    return await services.stores.database.in_writer(teams.create, body, by=by)


@router.patch(
    "/teams/{team}",
    response_description="The team after that.",
    responses=errors(400, 404, 413),
    openapi_extra={"requestBody": json_body(ChangeTeam, examples.CHANGE_TEAM)},
)
async def change_team(
    team: TeamRef, request: Request, teams: Teams, services: ServicesDep, by: OperatorName
) -> TeamEntry:
    """Change a team.

    Changes the fields that are sent, and leaves the rest as it is. Null takes the budget away.
    """
    sent = parse_json(await request.body())
    body = validate(ChangeTeam, sent, strict=True)
    return await services.stores.database.in_writer(teams.change, team, body, sent, by=by)
