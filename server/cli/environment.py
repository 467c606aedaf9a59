"""What commands start from: the settings, the database, and whose command it is."""

import getpass
import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from server.accounts.db import Database
    from server.settings import Settings

PREFIX = "DARKROOM_"


def read_settings() -> "Settings":
    """The settings of the environment; ends the command if one is invalid."""
    from pydantic import ValidationError

    from server.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        fail(f"{PREFIX}{str(first['loc'][0]).upper()}: {first['msg']} (got {first['input']!r}).")


def unknown_settings(environ: Mapping[str, str] = os.environ) -> list[str]:
    """A line for each DARKROOM_ variable that no setting has, such as a misspelled one, which has no effect."""
    from server.settings import Settings

    given = sorted(name.removeprefix(PREFIX) for name in environ if name.startswith(PREFIX))
    known = [field.upper() for field in Settings.model_fields]
    lines = []
    for name in given:
        if name not in known:
            similar = "".join(f" Is it {PREFIX}{match}?" for match in get_close_matches(name, known, n=1, cutoff=0.7))
            lines.append(f"{PREFIX}{name} is no setting and has no effect.{similar}")
    return lines


def open_database(settings: "Settings") -> "Database":
    """At this version's schema."""
    from server.accounts.db import Database

    database = Database(settings.database_url)
    database.migrate()
    return database


def user() -> str:
    """The operator of a command, for the audit."""
    return f"cli:{getpass.getuser()}"


def fail(message: str) -> NoReturn:
    """End the command."""
    typer.echo(message, err=True)
    sys.exit(1)
