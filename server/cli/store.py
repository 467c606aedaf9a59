"""`darkroom store`: whose the storage of images is, what was swept from it, and how that comes back."""

from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.environment import fail, open_database, read_settings, user

if TYPE_CHECKING:
    from server.accounts.db import Database
    from server.flows.storage.sweep import StorageSweep

app = typer.Typer(
    no_args_is_help=True, help="The storage of images: whose it is, what was swept, and how that comes back."
)


@app.command("adopt")
def adopt() -> None:
    """Make the storage this database's, whosever it was. Nothing in it is removed: files that this database does not
    know stay, and `darkroom ledger --check` names them."""
    from server.accounts.audit import record_change

    database, sweep, location = _open()
    sweep.adopt()
    record_change(database, user(), "store.adopt", location)
    typer.echo(f"{location} is this database's storage from now on.")


@app.command("sweep")
def sweep_now(
    with_unknown: Annotated[
        bool,
        typer.Option("--unknown", help="Also files that this database does not know: the storage must be its alone."),
    ] = False,
) -> None:
    """Move the files that no record needs, and images whose time is over, to the trash: all of them, where a server
    takes a small share in a day. Empties the trash of what lay there for DARKROOM_TRASH_DAYS."""
    from server.accounts.audit import record_change

    database, sweep, location = _open()
    swept = sweep.run_for_operator(with_unknown=with_unknown)
    if swept is None:
        fail(sweep.problem or "Nothing was removed.")
    record_change(database, user(), "store.sweep", location, trashed=swept.trashed, deleted=swept.deleted)
    typer.echo(f"{swept.trashed} files are in the trash, and {swept.deleted} that lay there are deleted.")


@app.command("put-back")
def put_back(
    names: Annotated[list[str] | None, typer.Argument(help="Names of files, such as 0f3c...e1.png.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that is in the trash.")] = False,
) -> None:
    """Put files back from the trash; images among them are there again, as they were."""
    from server.accounts.audit import record_change

    if bool(names) == everything:
        fail("Name the files that come back, or --all.")
    database, sweep, location = _open()
    try:
        files, images = sweep.put_back(names)
    except FileNotFoundError as error:
        fail(f"{error} is not in the trash of {location}. Nothing has changed.")
    record_change(database, user(), "store.put_back", location, files=files, images=images)
    typer.echo(f"{files} files are back. {images} of them are images that this database had let go, and lists again.")


def _open() -> tuple["Database", "StorageSweep", str]:
    from server.flows.storage.sweep import open_sweep

    settings = read_settings()
    database = open_database(settings)
    return database, open_sweep(settings, database), settings.images
