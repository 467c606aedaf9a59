"""`darkroom keys`: create, list, change, rotate and revoke API keys."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.cli.environment import fail, open_database, read_catalog, read_settings, user
from server.cli.printing import CsvFlag, JsonFlag, show_rows

if TYPE_CHECKING:
    from server.flows.operators.keys import KeyAdmin

app = typer.Typer(no_args_is_help=True, help="Create, list, change, rotate and revoke API keys.")

KeyArgument = Annotated[str, typer.Argument(help="The key's id, its name, or a unique beginning of either.")]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        "-g",
        help="A group of models that the key may use, or 'priority'. Several: with commas, or repeat it.",
    ),
]
Team = Annotated[str | None, typer.Option(help="The team whose monthly budget the key shares; 'none' is no team.")]
Budget = Annotated[str | None, typer.Option(help="Total that the key may ever spend, in CNY; 'none' is no limit.")]
Monthly = Annotated[
    str | None, typer.Option(help="What the key may spend in a month (UTC), in CNY; 'none' is no limit.")
]
Days = Annotated[str | None, typer.Option(help="Days from now until the key expires; 'never'.")]
MaxRunning = Annotated[
    int | None, typer.Option(min=0, help="Calls that may run at once; 0 is the server's default limit.")
]
PerMinute = Annotated[int | None, typer.Option(min=0, help="Calls that may begin in a minute; 0 is no limit.")]
Keepalive = Annotated[
    bool | None,
    typer.Option(help="Send spaces before a JSON answer that takes long, so that proxies keep the connection."),
]
Note = Annotated[str | None, typer.Option(help="A note, for operators.")]
HEADINGS = {
    "id": "Id", "name": "Name", "tail": "Key ends", "state": "State", "team": "Team", "groups": "Groups",
    "budget": "Budget", "monthly_budget": "Monthly", "spent": "Spent", "spent_this_month": "This month",
    "available": "Available", "max_running": "At once", "per_minute": "Per minute", "expires_at": "Expires",
    "last_used_at": "Last used", "created_at": "Created", "person": "Person",
}  # fmt: skip


@app.command("create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A name for the key, shown in lists and in the ledger.")],
    group: Groups = None,
    team: Team = None,
    budget: Budget = None,
    monthly_budget: Monthly = None,
    days: Days = None,
    max_running: MaxRunning = None,
    per_minute: PerMinute = None,
    keepalive: Keepalive = None,
    note: Note = None,
) -> None:
    """Create an API key and print its secret. The secret is shown only now: the database stores its hash.

    Without --group it may use every model."""
    from server.schemas.keys import CreateKey
    from server.schemas.validation import validate

    fields = _fields(context.params)
    created = _admin(with_groups=True).create(validate(CreateKey, {**fields, "name": name}, strict=True), by=user())
    typer.echo(
        f"Created {created.id} ({created.name}) for {', '.join(created.groups)}. Its secret is shown only now; clients "
        f"send it to {read_settings().local_url}/v1 as their API key:",
        err=True,
    )
    typer.echo(created.secret)


@app.command("list")
def list_all(as_json: JsonFlag = False, as_csv: CsvFlag = False) -> None:
    """List the API keys with their limits and their money (CNY), without their secrets."""
    rows = [entry.model_dump() for entry in _admin().list_all()]
    show_rows("API keys", HEADINGS, rows, as_json=as_json, as_csv=as_csv)


@app.command("set")
def change(
    context: typer.Context,
    key: KeyArgument,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    group: Groups = None,
    team: Team = None,
    budget: Budget = None,
    monthly_budget: Monthly = None,
    days: Days = None,
    max_running: MaxRunning = None,
    per_minute: PerMinute = None,
    keepalive: Keepalive = None,
    note: Note = None,
) -> None:
    """Change an API key. What is not given stays as it is; --group replaces all of its groups."""
    from server.schemas.keys import ChangeKey
    from server.schemas.validation import validate

    sent = _fields(context.params)
    if name is not None:
        sent["name"] = name
    changed = _admin(with_groups=True).change(key, validate(ChangeKey, sent, strict=True), sent, by=user())
    expiry = changed.expires_at and datetime.fromtimestamp(changed.expires_at, UTC)
    parts = (
        ", ".join(changed.groups),
        "no team" if changed.team is None else f"in the team {changed.team}",
        "no budget" if changed.budget is None else f"a budget of {changed.budget} CNY",
        "no monthly budget" if changed.monthly_budget is None else f"{changed.monthly_budget} CNY a month",
        "the server's default number of calls at once"
        if changed.max_running is None
        else f"{changed.max_running} calls at once",
        "no limit a minute" if changed.per_minute is None else f"{changed.per_minute} calls a minute",
        f"expires at {expiry:%Y-%m-%d %H:%M} UTC" if expiry else "never expires",
        f"keepalive {'on' if changed.keepalive else 'off'}",
    )
    typer.echo(f"{changed.id} ({changed.name}): {'; '.join(parts)}.")


@app.command()
def rotate(
    key: KeyArgument,
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=2160, help="How long the old secret works beside the new one.")
    ] = 24,
) -> None:
    """Give an API key a new secret and print it. The old one works for a while, so that clients can change over."""
    rotated = _admin().rotate(key, overlap_hours * 3600, by=user())
    typer.echo(f"{rotated.id} ({rotated.name}): the old secret works for {overlap_hours:g} hours more.", err=True)
    typer.echo(rotated.secret)


@app.command()
def revoke(key: KeyArgument) -> None:
    """Revoke an API key at once. Its charges stay in the ledger."""
    revoked = _admin().revoke(key, by=user())
    typer.echo(f"Revoked {revoked.id} ({revoked.name}).")


@app.command("webhook-secret")
def webhook_secret(key: KeyArgument) -> None:
    """Print the secret by which receivers check the signatures of a key's webhooks."""
    from server.flows.images.webhooks import shown_key

    found = _admin().find(key)
    try:
        secret = read_settings().webhook_secret.read_bytes()
    except FileNotFoundError as error:
        fail(f"{error.filename} is not there: `darkroom serve` makes it at its first start.")
    typer.echo(shown_key(secret, found.id))


def _admin(*, with_groups: bool = False) -> "KeyAdmin":
    """Return what acts on keys. Only what sets groups needs the catalog: with a broken one, keys can be revoked."""
    from server.flows.operators.keys import KeyAdmin

    settings = read_settings()
    return KeyAdmin(open_database(settings), read_catalog(settings).groups if with_groups else ())


def _fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of a command that were given, as the HTTP routes take them: null takes a limit away."""
    given = {name: value for name, value in options.items() if value is not None}
    fields: dict[str, Any] = {name: given[name] for name in ("keepalive", "note") if name in given}
    for name in given.keys() & {"team", "budget", "monthly_budget"}:
        fields[name] = None if given[name] == "none" else given[name]
    for name in given.keys() & {"max_running", "per_minute"}:
        fields[name] = given[name] or None
    if given.get("group"):  # a text that is empty, as a script's unset variable is, must not mean all of them
        fields["groups"] = [name.strip() for text in given["group"] for name in text.split(",") if name.strip()]
    days = given.get("days")
    if days == "never":
        fields["expires_at"] = None
    elif days is not None:
        if not days.isdecimal():
            fail(f"--days takes a number of days or 'never', not '{days}'.")
        fields["days"] = int(days)
    return fields
