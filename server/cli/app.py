"""The `darkroom` command. Each command itself imports the modules that it needs, so that `--help` is fast."""

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.protocol.processes import importing
from server.cli import batches, checkpoints, clients, cluster, keys, reports, reproduce, running, store, teams
from server.cli.environment import fail, flush_output, open_database, open_missing_streams, read_settings, user
from server.cli.printing import CsvFlag, JsonFlag
from server.cli.reports import KeyFilter, Limit, Since, Until
from server.errors import ApiError, DatabaseBusy, StartError, StorageFailed

if TYPE_CHECKING:
    from server.accounts.db import Database
    from server.settings import Settings


def error_line(error: BaseException) -> str:
    """Return what a person at a terminal is told: what is wrong and, where it is known, what would work."""
    if isinstance(error, StartError):
        return str(error)
    if isinstance(error, DatabaseBusy):
        return f"The database can't be used: {error.reason}"
    if isinstance(error, StorageFailed):
        return f"The storage can't be used: {error.reason}"
    from server.catalog.images import CatalogError

    if isinstance(error, CatalogError):
        return "; ".join(str(error).splitlines())
    if isinstance(error, ApiError):  # the same functions answer HTTP
        return error.message
    if isinstance(error, OSError) and error.strerror is not None:
        place = "" if error.filename is None else f"{error.filename}: "
        return f"{place}{error.strerror}.{_remedy(error)}"
    if isinstance(error, UnicodeEncodeError):  # from an argument, or the name of a file
        return f"{error.object[error.start : error.end + 20]!a} has letters that are not UTF-8."
    return _describe_unexpected(error)


def _remedy(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return " Run this as the user that runs the server, or set DARKROOM_HOME to a folder of your own."
    return ""


def _describe_unexpected(error: BaseException) -> str:
    """With its place in the code, for whoever reports it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return (
        f"Unexpected {type(error).__name__}: {text}{place}. `python -X dev -m darkroom` in place of `darkroom` shows "
        "the whole way to it."
    )


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # whose tables call a flag <bool>
    pretty_exceptions_enable=False,
    help="Darkroom: a self-hosted image and chat server that speaks OpenAI's API. Commands need the environment of the "
    "server: DARKROOM_HOME, its folder, and DARKROOM_PORT if it runs. docs/reference/settings.md has all variables.",
)
app.add_typer(keys.app, name="keys")
app.add_typer(teams.app, name="teams")
app.add_typer(reports.operators, name="operators")
app.add_typer(batches.app, name="batches")
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(running.jobs, name="jobs")
app.add_typer(running.policy, name="policy")
app.add_typer(cluster.app, name="cluster")
app.add_typer(store.app, name="store")


def main() -> None:
    """Run the `darkroom` script. Whatever goes wrong is one line for whoever is at the terminal, and no traceback."""
    os.umask(0o077)  # images, prompts and keys are the operator's alone
    open_missing_streams()
    try:
        app()
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        from server.cli.app import error_line

        fail(error_line(error))
    finally:
        flush_output()


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"darkroom {version('darkroom')}")
        raise typer.Exit


@app.callback()
def common(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Options of every command."""


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (DARKROOM_HOST).")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on (DARKROOM_PORT).")] = None,
) -> None:
    """Start the server. Its other settings are environment variables: see docs/reference/settings.md."""
    with importing():
        from server.cli.serve import run

    options = {"host": host, "port": port}
    run(read_settings().model_copy(update={name: value for name, value in options.items() if value is not None}))


@app.command()
def models(as_json: JsonFlag = False, as_csv: CsvFlag = False) -> None:
    """List the models with their tier, price, group, checkpoint, and the checkpoint's state."""
    from server.cli.printing import show, show_rows
    from server.cli.tables import MODEL_HEADINGS, model_rows, model_tables, read_readiness

    settings = read_settings()
    readiness = read_readiness(settings)
    rows = model_rows(settings, readiness)
    if as_json or as_csv:
        show_rows("Models", MODEL_HEADINGS, rows, as_json=as_json, as_csv=as_csv)
    else:
        show(*model_tables(rows, readiness))


@app.command()
def swap(
    model: Annotated[str, typer.Argument(help="Name of a model. All models of its catalog file change together.")],
    checkpoint: Annotated[
        str, typer.Argument(help="The new checkpoint: a path, absolute or relative to DARKROOM_WEIGHTS.")
    ],
    keep: Annotated[bool, typer.Option("--keep", help="Keep every key, also steps, `vae` and `denoiser`.")] = False,
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


@app.command()
def backup(
    folder: Annotated[Path, typer.Argument(help="Where to write the file; made if it is not there.")],
) -> None:
    """Write database, images, catalog and secrets into one file, also while the server runs."""
    from server.accounts.audit import record_change
    from server.accounts.schema import newest_schema
    from server.flows.operators.backup import make_backup

    settings = read_settings()
    try:
        made = make_backup(settings, folder)
    except OSError as error:
        fail(f"The backup can't be written: {error}")
    if made.schema == newest_schema():  # else it is of before an upgrade, whose audit this version can't write
        record_change(open_database(settings), user(), "backup.make", str(made.path), images=made.images)
    typer.echo(f"{made.path}: {made.size_bytes / 2**20:.1f} MiB, {made.images} images, schema {made.schema}.")
    typer.echo(f"Not in it: {'; '.join(made.left_out)}.")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `darkroom backup` wrote.", exists=True, dir_okay=False)],
    keep_catalog: Annotated[
        bool, typer.Option("--keep-catalog", help="Leave the catalog's files as they are.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Prove the backup alone: nothing is touched.")] = False,
) -> None:
    """Put a backup in place of what is there, which goes to a folder of the home. The server may not run."""
    from contextlib import nullcontext

    from server.flows.operators.backup import check_backup, restore_backup
    from server.housekeeping import lock_database, lock_home

    settings = read_settings()
    if check:
        found = check_backup(settings, file)  # without a lock: the server may run
        typer.echo(f"{file} is whole: {found.images} images and the database, schema {found.schema}.")
        return
    with lock_home(settings.home), lock_database(settings) or nullcontext():
        restored = restore_backup(settings, file, keep_catalog=keep_catalog)
    typer.echo(f"Restored {restored.images} images and the database, schema {restored.schema}.")
    if restored.storage_problem:
        typer.echo(restored.storage_problem)
    if restored.left_out:
        fail(f"Not restored: {'; '.join(restored.left_out)}.")


@app.command()
def doctor(as_json: JsonFlag = False, as_csv: CsvFlag = False) -> None:
    """Check settings, driver, CUDA, memory, disk, port, permissions, database, catalog and egress. Fails if one is
    wrong."""
    from server.cli.printing import show_rows
    from server.flows.operators.doctor import run_checks

    findings = run_checks(read_settings())
    words = {True: "ok", False: "WRONG", None: "note"}
    rows = [finding.model_dump() for finding in findings]
    if not (as_json or as_csv):
        rows = [row | {"ok": words[row["ok"]]} for row in rows]
    headings = {"name": "Check", "ok": "", "detail": "Found"}
    show_rows("Darkroom's doctor", headings, rows, as_json=as_json, as_csv=as_csv)
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


@app.command()
def ledger(
    key: KeyFilter = None,
    since: Since = None,
    to: Until = None,
    entries: Limit = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check that charges, holds and results agree; mend totals.")
    ] = False,
    as_json: JsonFlag = False,
    as_csv: CsvFlag = False,
) -> None:
    """Show balances, charges and chat tokens, or check the ledger for errors. --json and --csv print the charges
    alone."""
    from server.accounts import report, results
    from server.backends.object_storage import open_storage
    from server.cli.printing import show, show_rows
    from server.cli.reports import find_key_id, limit_entries, limit_of
    from server.cli.tables import balances_table, charges, tokens_table

    settings = read_settings()
    database = open_database(settings)
    if not check:
        key_id = find_key_id(key)
        limit = limit_of(entries, exported=as_json or as_csv)
        rows = limit_entries(charges(database, key_id, since, to, limit), limit)
        if not (as_json or as_csv):
            show(balances_table(database, key_id))
        headings = {
            "created_at": "Time", "team_name": "Team", "key_id": "Key", "call_id": "Call", "model": "Model",
            "amount": "Amount",
        }  # fmt: skip
        show_rows("Charges (CNY)", headings, rows, as_json=as_json, as_csv=as_csv)
        if not (as_json or as_csv):
            show(tokens_table(database, key_id))
        return
    storage = open_storage(settings.images, proxy=settings.proxy)
    problems = report.check(database) + results.check(database, storage.exists)
    _name_unknown_files(settings, database)
    for problem in problems:
        typer.echo(problem, err=True)
    if problems and (mended := report.repair_totals(database)):
        fail(f"The ledger had {len(problems)} problem(s), listed above. {mended} total(s) are the sums of charges now.")
    if problems:
        fail(f"The ledger has {len(problems)} problem(s), listed above.")
    typer.echo("The ledger is clean: charges, holds and results agree, and every result has its file.")


def _name_unknown_files(settings: "Settings", database: "Database") -> None:
    from server.flows.storage.sweep import open_sweep

    sweep = open_sweep(settings, database)
    if due := sweep.due():
        typer.echo(f"{due} files that this database has named have no record: a sweep moves them to the trash.")
    unknown = [name for page in sweep.unknown() for name in page]
    for name in unknown:
        typer.echo(f"file {name} has no record")
    if unknown:
        typer.echo(
            f"{len(unknown)} files in {settings.images}, listed above, were not written by servers of this database. "
            "They stay. They may be another server's, or newer than a backup that was restored. If they are nobody's, "
            "`darkroom store sweep --unknown` moves them to the trash."
        )


for command in (
    clients.clients, reports.usage, reports.calls, reports.audit, reports.moderation, running.sleep, running.wake,
    reproduce.reproduce,
):  # fmt: skip
    app.command()(command)
