"""The settings, the database and the operator of a command."""

import atexit
import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from server.accounts.db import Database
    from server.catalog.images import Catalog
    from server.settings import Settings


def read_settings() -> "Settings":
    """Read the settings from the environment; ends the command if one is invalid."""
    from pydantic import ValidationError

    from server.settings import PREFIX, Settings

    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        fail(f"{PREFIX}{str(first['loc'][0]).upper()}: {first['msg']} (got {first['input']!r}).")


def open_database(settings: "Settings") -> "Database":
    """Return the database of a server that has run, as it is: only the start of a server makes or migrates one. Raises
    StartError for none, or one of another version."""
    from server.accounts.db import Database
    from server.accounts.schema import schema_problem
    from server.errors import StartError

    database = Database(settings.database_url)
    atexit.register(database.dispose)  # SQLite leaves no files beside its own then
    version = database.schema_version()
    if version is None:
        raise StartError(settings.no_server_message)
    if problem := schema_problem(version):
        raise StartError(problem)
    return database


def read_catalog(settings: "Settings") -> "Catalog":
    """Return the catalog that the settings name. Raises StartError."""
    from server.catalog.images import CatalogError, load_catalog
    from server.errors import StartError

    try:
        return load_catalog(settings.model_configs, settings.weights)
    except CatalogError as error:
        raise StartError(str(error)) from error


def user() -> str:
    """Return the operator's name of a command for the audit, from the system's user. A user id may have no name, as in
    a container."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # the latter from Python 3.13 on
        return f"cli:uid{os.getuid()}"


def open_missing_streams() -> None:
    """Let output go nowhere if the command was started without (`>&-`)."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115


def flush_output() -> None:
    """Write what is left of the output. If that fails, say so and end the command: half of a list is no success."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())  # else the interpreter fails at its end
        if isinstance(error, BrokenPipeError) or _has_failed():
            sys.exit(1)
        fail(f"The output can't be written: {error.strerror}.")


def _has_failed() -> bool:
    """Return whether the command ends with an error already, which it has told."""
    ending = sys.exc_info()[1]
    return isinstance(ending.__context__, SystemExit) and ending.__context__.code not in {0, None} if ending else False


def fail(message: str) -> NoReturn:
    """End the command with a message."""
    typer.echo(message, err=True)
    sys.exit(1)
