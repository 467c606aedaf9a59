"""`darkroom teams`: create, list and change teams of keys."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.cli.environment import open_database, read_settings, user
from server.cli.printing import CsvFlag, JsonFlag, show_rows

if TYPE_CHECKING:
    from server.flows.operators.teams import TeamAdmin

app = typer.Typer(no_args_is_help=True, help="Teams of keys that share a monthly budget: create, list, change.")

Monthly = Annotated[
    str | None, typer.Option(help="What the team's keys may spend in a month (UTC), in CNY; 'none' is no limit.")
]
HEADINGS = {
    "id": "Id", "name": "Name", "keys": "Keys", "monthly_budget": "Monthly", "spent_this_month": "This month",
    "held": "Held", "available": "Available", "created_at": "Created",
}  # fmt: skip


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="A name for the team, shown in lists and in the ledger.")],
    monthly_budget: Monthly = None,
) -> None:
    """Create a team, and print its id. `darkroom keys set KEY --team NAME` puts a key into it."""
    from server.schemas.keys import CreateTeam
    from server.schemas.validation import validate

    fields: dict[str, Any] = {"name": name} | _budget(monthly_budget)
    typer.echo(_admin().create(validate(CreateTeam, fields, strict=True), by=user()).id)


@app.command("list")
def list_all(as_json: JsonFlag = False, as_csv: CsvFlag = False) -> None:
    """List the teams with their budgets, and what their keys spent this month (CNY)."""
    rows = [entry.model_dump() for entry in _admin().list_all()]
    show_rows("Teams", HEADINGS, rows, as_json=as_json, as_csv=as_csv)


@app.command("set")
def change(
    team: Annotated[str, typer.Argument(help="The team's id or name.")],
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    monthly_budget: Monthly = None,
) -> None:
    """Change a team. What is not given stays as it is."""
    from server.schemas.keys import ChangeTeam
    from server.schemas.validation import validate

    sent = ({} if name is None else {"name": name}) | _budget(monthly_budget)
    changed = _admin().change(team, validate(ChangeTeam, sent, strict=True), sent, by=user())
    budget = "no monthly budget" if changed.monthly_budget is None else f"{changed.monthly_budget} CNY a month"
    typer.echo(f"{changed.id} ({changed.name}): {budget}, of which {changed.spent_this_month} CNY are spent.")


def _admin() -> "TeamAdmin":
    from server.flows.operators.teams import TeamAdmin

    return TeamAdmin(open_database(read_settings()))


def _budget(monthly_budget: str | None) -> dict[str, Any]:
    """Return the option as the HTTP routes take it, if it was given: null is no limit."""
    return {} if monthly_budget is None else {"monthly_budget": None if monthly_budget == "none" else monthly_budget}
