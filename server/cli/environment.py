"""The settings, the database and the operator of a command."""

import atexit
import getpass
import os
import sys
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
    """Return the operator of a command, for the audit. A user id may have no name, as in a container."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # the latter from Python 3.13 on
        return f"cli:uid{os.getuid()}"


def fail(message: str) -> NoReturn:
    """End the command with a message."""
    typer.echo(message, err=True)
    sys.exit(1)
