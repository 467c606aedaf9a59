"""The `darkroom` command. Each command imports what it needs itself, so that `--help` is fast."""

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from server.cli import checkpoints
from server.errors import DatabaseBusy, StartError

if TYPE_CHECKING:
    from server.accounts.db import Database
    from server.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Darkroom: a self-hosted image and chat server that speaks OpenAI's API.",
)
keys = typer.Typer(no_args_is_help=True, help="Create, list, change and revoke API keys.")
app.add_typer(keys, name="keys")
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(checkpoints.app, name="checkpoints")

KeyFilter = Annotated[str | None, typer.Option("--key", help="Show only the API key with this id.")]


def main() -> None:
    """The entry point of the `darkroom` script."""
    os.umask(0o077)  # pictures, prompts and keys are the operator's alone
    try:
        app()
    except StartError as error:
        _fail(str(error))
    except DatabaseBusy as error:
        _fail(f"The database is busy or out of reach: {error.reason}")


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (DARKROOM_HOST).")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on (DARKROOM_PORT).")] = None,
) -> None:
    """Start the server. Its other settings are environment variables: see docs/settings.md."""
    from server.cli.serve import run

    options = {"host": host, "port": port}
    run(read_settings().model_copy(update={name: value for name, value in options.items() if value is not None}))


@app.command()
def models() -> None:
    """List the models with their tier, price, group, checkpoint, and the checkpoint's state. And the image workers of a
    running server."""
    from server.cli.printing import show
    from server.cli.tables import catalog_tables

    show(*catalog_tables(read_settings()))


@app.command()
def swap(
    model: Annotated[str, typer.Argument(help="Name of a model. All models of its catalog file change together.")],
    checkpoint: Annotated[
        str, typer.Argument(help="The new checkpoint: a path, absolute or relative to DARKROOM_WEIGHTS.")
    ],
    keep: Annotated[bool, typer.Option("--keep", help="Keep steps, guidance, areas and conditioning.")] = False,
) -> None:
    """Change the checkpoint of a model on the running server, without downtime, and fit its settings to it."""
    from server.cli.admin_client import change_catalog, weights_path

    settings = read_settings()
    path = weights_path(settings, checkpoint)
    change_catalog(settings, "/admin/swap", {"model": model, "checkpoint": path, "keep_settings": keep})


@app.command()
def undo() -> None:
    """Take back the latest swap on the running server."""
    from server.cli.admin_client import change_catalog

    change_catalog(read_settings(), "/admin/undo", {})


@app.command()
def reload() -> None:
    """Make the running server read its catalog files again, without downtime."""
    from server.cli.admin_client import change_catalog

    change_catalog(read_settings(), "/admin/reload", {})


@keys.command("create")
def create(
    name: Annotated[str, typer.Argument(help="A name for the key, shown in lists and in the ledger.")],
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group", "-g", help="A group of models that the key may use. Repeat it for several. Default: all groups."
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Total that the key may ever spend, in CNY. Default: no limit.")
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days until the key expires. Default: never.")] = None,
) -> None:
    """Create an API key and print its secret. The secret is shown only now: the database stores its hash."""
    from server.accounts.keys import create_key
    from server.accounts.money import parse_money
    from server.cli.serve import all_groups

    settings = read_settings()
    try:
        catalog_groups = all_groups(settings)
        amount = parse_money(budget) if budget is not None else None
    except ValueError as error:
        _fail(str(error))
    if unknown := set(group or ()) - catalog_groups:
        _fail(f"Unknown group {', '.join(sorted(unknown))}. The catalog has: {', '.join(sorted(catalog_groups))}.")
    expires = datetime.now(UTC) + timedelta(days=days) if days else None
    key, secret = create_key(_database(settings), name, frozenset(group or catalog_groups), amount, expires)
    typer.echo(f"{key.id} ({', '.join(sorted(key.groups))})", err=True)
    typer.echo(secret)


@keys.command("list")
def list_all() -> None:
    """List the API keys, without their secrets."""
    from server.cli.printing import show
    from server.cli.tables import keys_table

    show(keys_table(_database(read_settings())))


@keys.command("webhook-secret")
def webhook_secret(key: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")]) -> None:
    """Print the secret by which receivers check the signatures of a key's webhooks."""
    from server.flows.images.webhooks import shown_key

    try:
        typer.echo(shown_key(read_settings().webhook_secret.read_bytes(), key))
    except OSError as error:
        _fail(f"{error.filename} can't be read: `darkroom serve` makes it at its first start.")


@keys.command("set")
def change(
    key: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")],
    budget: Annotated[
        str | None, typer.Option(help="Total that the key may ever spend, in CNY; 'none' is no limit.")
    ] = None,
    max_running: Annotated[
        int | None, typer.Option(min=0, help="Calls that may run at once; 0 is the server's default limit.")
    ] = None,
    per_minute: Annotated[
        int | None, typer.Option(min=0, help="Calls that may begin in a minute; 0 is no limit.")
    ] = None,
    keepalive: Annotated[
        bool | None,
        typer.Option(help="Send spaces before a JSON answer that takes long, so that proxies keep the connection."),
    ] = None,
) -> None:
    """Change the limits of an API key. What is not given stays as it is."""
    from server.accounts.keys import KeyChanges, update_key
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
        changed = update_key(_database(read_settings()), key, changes, by=_user())
    except ValueError as error:
        _fail(str(error))
    if changed is None:
        _fail(f"There is no key '{key}'. `darkroom keys list` shows the ids.")
    parts = (
        "no budget" if changed.budget is None else f"a budget of {format_money(changed.budget)} CNY",
        "the server's default number of calls at once"
        if changed.max_running is None
        else f"{changed.max_running} calls at once",
        "no limit a minute" if changed.per_minute is None else f"{changed.per_minute} calls a minute",
        f"keepalive {'on' if changed.keepalive else 'off'}",
    )
    typer.echo(f"{changed.id} ({changed.name}): {'; '.join(parts)}.")


@keys.command()
def revoke(key: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")]) -> None:
    """Revoke an API key at once. Its charges stay in the ledger."""
    from server.accounts.keys import revoke_key

    revoked = revoke_key(_database(read_settings()), key, by=_user())
    if revoked is None:
        _fail(f"There is no key '{key}'. `darkroom keys list` shows the ids.")
    typer.echo(f"Revoked {revoked.id} ({revoked.name}).")


@app.command()
def ledger(
    key: KeyFilter = None,
    entries: Annotated[int, typer.Option(min=0, help="How many charges to show, newest first.")] = 20,
    check: Annotated[bool, typer.Option("--check", help="Check that charges, holds and results agree.")] = False,
) -> None:
    """Show balances, charges and chat tokens, or check the ledger for errors."""
    from server.accounts import report
    from server.backends.storage import Storage
    from server.cli.printing import show
    from server.cli.tables import balances_table, entries_table, tokens_table

    settings = read_settings()
    database = _database(settings)
    if not check:
        show(balances_table(database, key), entries_table(database, key, entries), tokens_table(database, key))
        return
    problems = report.check(database, Storage(settings.results).exists)
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        _fail(f"The ledger has {len(problems)} problem(s), listed above.")
    typer.echo("The ledger is clean: charges, holds and results agree, and every result has its file.")


@app.command()
def moderation(
    key: KeyFilter = None,
    entries: Annotated[int, typer.Option(min=0, help="How many refusals to show, newest first.")] = 20,
) -> None:
    """List what the moderation policy refused, and why."""
    from server.cli.printing import show
    from server.cli.tables import refusals_table

    show(refusals_table(_database(read_settings()), key, entries))


def read_settings() -> "Settings":
    """The settings of the environment; ends the command if one is invalid."""
    from pydantic import ValidationError

    from server.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        _fail(f"DARKROOM_{str(first['loc'][0]).upper()}: {first['msg']} (got {first['input']!r})")


def _user() -> str:
    """The operator of a command, for the audit."""
    import getpass

    return f"cli:{getpass.getuser()}"


def _database(settings: "Settings") -> "Database":
    from server.accounts.db import Database

    database = Database(settings.database_url)
    database.migrate()
    return database


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    sys.exit(1)
