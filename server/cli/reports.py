"""`darkroom usage`, `calls`, `audit`, `moderation` and `operators`: the same reports as those of the routes below
/admin."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

import typer

from server.cli.environment import fail, open_database, read_settings, user
from server.cli.printing import CsvFlag, JsonFlag, show_rows

Entry = TypeVar("Entry")

operators = typer.Typer(no_args_is_help=True, help="Admin keys by name: create, list, revoke.")

KeyFilter = Annotated[
    str | None, typer.Option("--key", help="Only of the API key with this id or name, or a unique beginning of either.")
]
TeamFilter = Annotated[
    str | None, typer.Option("--team", help="Only of the team with this id or name: what its keys did while in it.")
]
Since = Annotated[str | None, typer.Option("--from", help="From this day or month on: 2026-11-01, 2026-11 (UTC).")]
Until = Annotated[str | None, typer.Option("--to", help="To the end of this day or month (UTC).")]
Limit = Annotated[
    int | None,
    typer.Option("--entries", min=0, help="How many to show, newest first. Left out: 20; with --json or --csv, all."),
]
ON_SCREEN, ALL = 20, 2**31 - 2  # the latter is the most that a database is asked for


def usage(
    by: Annotated[
        str, typer.Option(help="What the sums are of: team, key, month, day, model, separated by commas.")
    ] = "key",
    since: Since = None,
    to: Until = None,
    month: Annotated[str | None, typer.Option(help="Only this month, such as 2026-10; for --from and --to.")] = None,
    key: KeyFilter = None,
    team: TeamFilter = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    as_json: JsonFlag = False,
    as_csv: CsvFlag = False,
) -> None:
    """Show who used and spent what (CNY): image calls with their money, chats with their tokens."""
    from server.accounts.usage import GROUPINGS, UsageFilter
    from server.flows.operators.periods import MONTH, read_period
    from server.flows.operators.reports import usage_columns, usage_report
    from server.schemas.validation import one_of

    database = open_database(read_settings())
    names = {one_of(GROUPINGS, name.strip(), "by") for name in by.split(",") if name.strip()}
    grouping = [each for each in GROUPINGS if each in names]
    if month is not None and not MONTH.fullmatch(month):
        fail(f"Invalid '--month': expected a month like 2026-11, but got '{month[:40]}'.")
    wanted = UsageFilter(find_key_id(key), model, read_period(month or since, month or to), find_team_id(team))
    report = usage_report(database, wanted, grouping)
    columns = usage_columns(grouping)
    rows = [{name: row.model_dump()[name] for name in columns} for row in report.data]
    headings = {name: name.replace("_", " ").capitalize() for name in columns}
    show_rows("Usage (CNY)", headings, rows, as_json=as_json, as_csv=as_csv)
    if not (as_json or as_csv):
        total = report.total
        tokens = f"{total.prompt_tokens} prompt and {total.completion_tokens} completion tokens"
        typer.echo(f"Total: {total.amount} CNY for {total.calls} calls; {total.chats} chats with {tokens}.")


def calls(
    key: KeyFilter = None,
    status: Annotated[
        str | None, typer.Option(help="Only those that 'succeeded', were 'refused', or 'failed'.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    code: Annotated[str | None, typer.Option(help="Only those that got this error.")] = None,
    since: Since = None,
    to: Until = None,
    entries: Limit = None,
    as_json: JsonFlag = False,
    as_csv: CsvFlag = False,
) -> None:
    """List calls, also those that failed or were refused, and why."""
    from typing import get_args

    from server.accounts.call_log import CallFilter, CallLog, Outcome
    from server.accounts.paging import Page
    from server.flows.operators.periods import read_period
    from server.flows.operators.reports import call_entry
    from server.schemas.validation import one_of

    database = open_database(read_settings())
    outcome: Outcome | None = one_of(get_args(Outcome), status, "status") if status else None
    wanted = CallFilter(find_key_id(key), outcome, model, code, read_period(since, to))
    limit = limit_of(entries, exported=as_json or as_csv)
    found = limit_entries(CallLog(database).page(wanted, Page(limit)), limit)
    headings = {
        "created_at": "Time", "id": "Request", "job": "Job", "key_name": "Key", "model": "Model", "status": "Status",
        "code": "Error", "param": "Field", "message": "Message", "queue_s": "Queue (s)", "run_s": "Run (s)",
        "price": "Price (CNY)",
    }  # fmt: skip
    rows = [call_entry(call).model_dump() for call in found]
    show_rows("Calls", headings, rows, as_json=as_json, as_csv=as_csv)


def audit(
    target: Annotated[str | None, typer.Option(help="Only changes of this key's id, or whatever was changed.")] = None,
    operator: Annotated[str | None, typer.Option(help="Only changes by this operator, such as cli:root.")] = None,
    since: Since = None,
    to: Until = None,
    entries: Limit = None,
    as_json: JsonFlag = False,
    as_csv: CsvFlag = False,
) -> None:
    """List what operators changed, by HTTP or on the command line."""
    from server.accounts.audit import AuditFilter, list_changes
    from server.accounts.paging import Page
    from server.flows.operators.periods import read_period
    from server.flows.operators.reports import audit_record

    wanted = AuditFilter(operator, None, target, read_period(since, to))
    limit = limit_of(entries, exported=as_json or as_csv)
    found = limit_entries(list_changes(open_database(read_settings()), wanted, Page(limit)), limit)
    headings = {"created_at": "Time", "operator": "Operator", "action": "Action", "target": "Of", "details": "Details"}
    rows = [audit_record(entry).model_dump() for entry in found]
    show_rows("Changes", headings, rows, as_json=as_json, as_csv=as_csv)


def moderation(
    key: KeyFilter = None, entries: Limit = None, as_json: JsonFlag = False, as_csv: CsvFlag = False
) -> None:
    """List what the moderation policy refused, and why."""
    from server.accounts.paging import Page
    from server.accounts.refusals import list_refusals
    from server.flows.operators.reports import key_names, refusal_entries

    database = open_database(read_settings())
    limit = limit_of(entries, exported=as_json or as_csv)
    refused = limit_entries(list_refusals(database, find_key_id(key), Page(limit)), limit)
    found = refusal_entries(refused, key_names(database))
    headings = {
        "created_at": "Time", "key_name": "Key", "call_id": "Call", "model": "Model", "stage": "Stage",
        "policy": "Policy", "category": "Category", "evidence": "Evidence",
    }  # fmt: skip
    rows = [entry.model_dump() for entry in found]
    show_rows("Refused by moderation", headings, rows, as_json=as_json, as_csv=as_csv)


@operators.command("create")
def create_operator(
    name: Annotated[str, typer.Argument(help="A name, which the audit shows beside every change.")],
) -> None:
    """Make an admin key and print its secret. The secret is shown only now: the database stores its hash."""
    from server.accounts.operators import NameTaken
    from server.accounts.operators import create_operator as create
    from server.schemas.reports import CreateOperator
    from server.schemas.validation import validate

    body = validate(CreateOperator, {"name": name}, strict=True)
    try:
        created, secret = create(open_database(read_settings()), body.name, by=user())
    except NameTaken:
        fail(f"There is an operator '{name}' already.")
    typer.echo(created.id, err=True)
    typer.echo(secret)


@operators.command("list")
def list_operators(as_json: JsonFlag = False, as_csv: CsvFlag = False) -> None:
    """List the admin keys beside that of the server's home, which has the name 'admin'."""
    from dataclasses import asdict

    from server.accounts.operators import list_operators as list_all

    rows = [asdict(each) for each in list_all(open_database(read_settings()))]
    headings = {"id": "Id", "name": "Name", "tail": "Key ends", "created_at": "Created", "revoked_at": "Revoked"}
    show_rows("Operators", headings, rows, as_json=as_json, as_csv=as_csv)


@operators.command("revoke")
def revoke_operator(name: Annotated[str, typer.Argument(help="The operator's id or name.")]) -> None:
    """End an admin key at once."""
    from server.accounts.operators import revoke_operator as revoke

    revoked = revoke(open_database(read_settings()), name, by=user())
    if revoked is None:
        fail(f"There is no operator '{name}'. `darkroom operators list` shows them.")
    typer.echo(f"Revoked {revoked.id} ({revoked.name}).")


def limit_of(entries: int | None, *, exported: bool) -> int:
    """Return how many entries to read: an export is whole, unless it is asked for less."""
    if entries is not None:
        return entries
    return ALL if exported else ON_SCREEN


def limit_entries(found: Sequence[Entry], limit: int) -> Sequence[Entry]:
    """Return the first of the entries, and say on stderr if there are more."""
    if len(found) > limit:
        typer.echo(f"These are the newest {limit}; --entries N shows more.", err=True)
    return found[:limit]


def find_key_id(key: str | None) -> str | None:
    """Return the key's id, of an id, a name, or a unique beginning of either; ends the command if there is none."""
    from server.accounts.keys import KeyNotFound, find_key

    if key is None:
        return None
    try:
        return find_key(open_database(read_settings()), key).id
    except KeyNotFound as error:
        fail(str(error))


def find_team_id(team: str | None) -> str | None:
    """Return the id of the team with this id or name. Raises NotFound, which ends the command in words."""
    from server.flows.operators.teams import find_team

    return None if team is None else find_team(open_database(read_settings()), team).id
