"""The `darkroom` command. Imports of the server stay inside the commands, so that help is there at once."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from server.errors import StartError

if TYPE_CHECKING:
    from server.accounts.db import Database
    from server.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Darkroom: a self-hosted image and chat server that speaks OpenAI's API.",
)
keys = typer.Typer(no_args_is_help=True, help="API keys: who may call what.")
starters = typer.Typer(no_args_is_help=True, help="The checkpoints that a first start uses.")
app.add_typer(keys, name="keys")
app.add_typer(starters, name="starters")

KeyFilter = Annotated[str | None, typer.Option("--key", help="Only the key with this id.")]


def main() -> None:
    """Run the command line."""
    try:
        app()
    except StartError as error:
        _fail(str(error))


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (DARKROOM_HOST).")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on (DARKROOM_PORT).")] = None,
) -> None:
    """Run the server."""
    from server.cli.serve import run

    given = {"host": host, "port": port}
    run(_settings().model_copy(update={name: value for name, value in given.items() if value is not None}))


@app.command()
def models() -> None:
    """Show every model: its tier, price, checkpoint, and the checkpoint's state."""
    from server.cli.tables import catalog_table, show

    show(catalog_table(_settings()))


@app.command()
def swap(
    model: Annotated[str, typer.Argument(help="A model; those of the same catalog file go with it.")],
    checkpoint: Annotated[str, typer.Argument(help="The new checkpoint: a path, or one below DARKROOM_WEIGHTS.")],
) -> None:
    """Give a model of the running server another checkpoint, without a pause."""
    from server.cli.admin_client import change_catalog, weights_path

    settings = _settings()
    path = weights_path(settings, checkpoint)
    change_catalog(settings, "/admin/swap", {"model": model, "checkpoint": path})


@app.command()
def reload() -> None:
    """Have the running server read its catalog again, without a pause."""
    from server.cli.admin_client import change_catalog

    change_catalog(_settings(), "/admin/reload", {})


@keys.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What you call it; the ledger shows it.")],
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="A group; repeat for several. Default: all.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="What it may spend in all, in CNY. Default: no limit.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires. Default: never.")] = None,
) -> None:
    """Make a key. It is shown once: the database keeps only its hash."""
    from server.accounts.keys import create_key
    from server.accounts.money import parse_money
    from server.cli.serve import groups_of

    settings = _settings()
    try:
        known = groups_of(settings)
        amount = parse_money(budget) if budget is not None else None
    except ValueError as error:
        _fail(str(error))
    if unknown := set(group or ()) - known:
        _fail(f"Unknown group {', '.join(sorted(unknown))}. The catalog has: {', '.join(sorted(known))}.")
    expires = datetime.now(UTC) + timedelta(days=days) if days else None
    key, secret = create_key(_database(settings), name, frozenset(group or known), amount, expires)
    typer.echo(f"{key.id} ({', '.join(sorted(key.groups))})", err=True)
    typer.echo(secret)


@keys.command("list")
def list_all() -> None:
    """Show every key, without its secret."""
    from server.cli.tables import keys_table, show

    show(keys_table(_database(_settings())))


@keys.command("set")
def change(
    key: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")],
    budget: Annotated[str | None, typer.Option(help="What it may spend in all, in CNY, or 'none'.")] = None,
    max_running: Annotated[
        int | None, typer.Option(min=0, help="Calls it may have at once; 0 is the server's own limit.")
    ] = None,
    per_minute: Annotated[
        int | None, typer.Option(min=0, help="Calls it may begin in a minute; 0 is no limit.")
    ] = None,
    keepalive: Annotated[
        bool | None, typer.Option(help="Whether its JSON answers are preceded by spaces while it waits.")
    ] = None,
) -> None:
    """Change what a key may spend and do at once, and how it is answered."""
    from server.accounts.keys import KeyChanges, change_key
    from server.accounts.money import format_money, parse_money

    changes: KeyChanges = {}
    if max_running is not None:
        changes["max_running"] = max_running or None
    if per_minute is not None:
        changes["per_minute"] = per_minute or None
    if keepalive is not None:
        changes["keepalive"] = keepalive
    try:
        if budget is not None:
            changes["budget"] = None if budget == "none" else parse_money(budget)
        changed = change_key(_database(_settings()), key, changes)
    except ValueError as error:
        _fail(str(error))
    if changed is None:
        _fail(f"There is no key '{key}'. `darkroom keys list` shows the ids.")
    parts = (
        "no budget" if changed.budget is None else f"a budget of {format_money(changed.budget)} CNY",
        "the server's own limit" if changed.max_running is None else f"{changed.max_running} calls at once",
        "no limit a minute" if changed.per_minute is None else f"{changed.per_minute} calls a minute",
        f"keepalive {'on' if changed.keepalive else 'off'}",
    )
    typer.echo(f"{changed.id} ({changed.name}): {'; '.join(parts)}.")


@keys.command()
def revoke(key: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")]) -> None:
    """End a key at once. Its entries stay in the ledger."""
    from server.accounts.keys import revoke_key

    revoked = revoke_key(_database(_settings()), key)
    if revoked is None:
        _fail(f"There is no key '{key}'. `darkroom keys list` shows the ids.")
    typer.echo(f"Revoked {revoked.id} ({revoked.name}).")


@app.command()
def ledger(
    key: KeyFilter = None,
    entries: Annotated[int, typer.Option(min=0, help="How many entries to show, newest first.")] = 20,
    check: Annotated[bool, typer.Option("--check", help="Prove that entries, holds and results agree.")] = False,
) -> None:
    """Show balances, charges and the tokens of chats, or check the books."""
    from server.accounts import report
    from server.backends.storage import Storage
    from server.cli.tables import balances_table, entries_table, show, tokens_table

    settings = _settings()
    database = _database(settings)
    if not check:
        show(balances_table(database, key), entries_table(database, key, entries), tokens_table(database, key))
        return
    problems = report.check(database, Storage(settings.results).exists)
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        _fail(f"{len(problems)} problem(s) in the ledger.")
    typer.echo("The ledger is clean: entries, holds and results agree, and every result has its file.")


@app.command()
def moderation(
    key: KeyFilter = None,
    entries: Annotated[int, typer.Option(min=0, help="How many to show, newest first.")] = 20,
) -> None:
    """Show what the moderation policy refused, and why."""
    from server.cli.tables import refusals_table, show

    show(refusals_table(_database(_settings()), key, entries))


@starters.command("build")
def build(
    force: Annotated[bool, typer.Option(help="Build again what is untrained.")] = False,
) -> None:
    """Write the starter checkpoints that are missing, untrained: they draw noise, and all else is real."""
    from server.cli.serve import build_starters

    raise typer.Exit(build_starters(_settings().weights, force=force))


@starters.command("train")
def train(
    names: Annotated[list[str] | None, typer.Argument(help="Which of them. Default: all.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=1, help="For each image starter; starter-chat has no limit. Default: until every step is made."
        ),
    ] = None,
    onward: Annotated[
        bool, typer.Option("--onward", help="Image starters begin with the weights that are there, not from nothing.")
    ] = False,
) -> None:
    """Train the starters from nothing, or go on where the last run stopped. Ctrl-C keeps what is learned."""
    from server.cli.serve import train_starters

    raise typer.Exit(train_starters(_settings().weights, names or [], minutes, onward=onward))


@starters.command("measure")
def measure(
    count: Annotated[int, typer.Option(min=1, help="Captions, and as many edits and conversations.")] = 200,
    sheet: Annotated[Path | None, typer.Option(help="Where to write some of the pictures, as PNG.")] = None,
    cards: Annotated[bool, typer.Option("--cards", help="Write the figures into the model cards too.")] = False,
) -> None:
    """Show what the starters get right of captions, edits and conversations that training never saw."""
    from server.cli.serve import measure_starters

    raise typer.Exit(measure_starters(_settings(), count, sheet, cards=cards))


def _settings() -> "Settings":
    from pydantic import ValidationError

    from server.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        _fail(f"DARKROOM_{str(first['loc'][0]).upper()}: {first['msg']} (got {first['input']!r})")


def _database(settings: "Settings") -> "Database":
    from server.accounts.db import Database

    database = Database(settings.database_url)
    database.migrate()
    return database


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    sys.exit(1)
