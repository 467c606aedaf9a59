"""The settings, the database and the operator of a command."""

import getpass
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
    """Open the database, at this version's schema."""
    from server.accounts.db import Database

    database = Database(settings.database_url)
    database.migrate()
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
    """Return the operator of a command, for the audit."""
    return f"cli:{getpass.getuser()}"


def fail(message: str) -> NoReturn:
    """End the command."""
    typer.echo(message, err=True)
    sys.exit(1)
