"""The versions of the schema: what this code knows, and whether a database has it."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, MetaData

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

MIGRATIONS = Path(__file__).parent / "migrations"


def newest_schema() -> str:
    """Return the number of this version's last migration."""
    return str(_scripts().get_current_head())


def schema_problem(version: str | None) -> str | None:
    """Return why this code can't use a database whose last migration is `version` (None: it has no tables), and what
    would work; None if it can."""
    if version == newest_schema():
        return None
    if version is None:
        return "The database has no tables yet: `darkroom serve` makes them."
    if is_newer(version):
        return (
            f"The database has the schema {version}, which is newer than this version's {newest_schema()}: use the "
            "Darkroom that its server has, or a later one."
        )
    return (
        f"The database has the schema {version}, and this version has {newest_schema()}: start the server of this "
        "version, which brings it up. Until then, use the commands of the version that runs."
    )


@cache
def is_newer(version: str) -> bool:
    """Return whether a database is of a later version than this code: its last migration is none of ours."""
    return version not in {script.revision for script in _scripts().walk_revisions()}


def upgrade(connection: Connection) -> None:
    """Run the migrations that the database lacks, in its transaction."""
    from alembic import command

    config = _alembic()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def all_tables() -> MetaData:
    """Return the tables of this version."""
    from server.accounts import operator_tables, response_tables, result_tables  # noqa: F401
    from server.accounts.tables import Base

    return Base.metadata


def table_names() -> set[str]:
    """Return the names of all tables that a database of this version has."""
    return {*all_tables().tables, "alembic_version"}


def _scripts() -> "ScriptDirectory":
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_alembic())


def _alembic() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))  # the option interpolates
    return config
