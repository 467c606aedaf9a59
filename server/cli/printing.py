"""Tables on the screen, as JSON or as CSV, without what a server needs: such commands start fast."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from server.flows.operators.csv_text import TIMES, csv_text

JsonFlag = Annotated[bool, typer.Option("--json", help="Print every field of every entry, as JSON.")]
CsvFlag = Annotated[bool, typer.Option("--csv", help="Print every field of every entry, as CSV.")]
UNLIMITED = 10_000  # columns, where the output is not a terminal: a pipe has no width


def show(*tables: Table) -> None:
    """Whole: nothing is cut off, on a narrow terminal it is folded."""
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else UNLIMITED)
    for table in tables:
        for column in table.columns:
            column.overflow = "fold"
        console.print(table)


def show_rows(
    title: str, headings: Mapping[str, str], rows: Sequence[Mapping[str, Any]], *, as_json: bool, as_csv: bool
) -> None:
    """A table of the fields that have headings; or all fields as JSON or CSV. Rows have the same fields."""
    if as_json:
        typer.echo(json.dumps(list(rows), indent=2, ensure_ascii=False))
    elif as_csv:
        columns = [name for name in rows[0] if name != "object"] if rows else list(headings)
        typer.echo(csv_text(columns, rows, header=True), nl=False)
    else:
        table = Table(*headings.values(), title=title)
        for row in rows:
            add_row(table, *(_cell(name, row.get(name)) for name in headings))
        show(table)


def add_row(table: Table, *cells: str) -> None:
    """Add a row of plain text: rich would read brackets in names as markup."""
    table.add_row(*map(Text, cells))


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in TIMES:
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
