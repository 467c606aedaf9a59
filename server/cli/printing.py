"""Tables on the screen, as JSON or as CSV, without a server's imports: such commands start fast."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from server.flows.operators.csv_text import TIMES, csv_text

JsonFlag = Annotated[bool, typer.Option("--json", help="Print every field of every entry, as JSON.")]
CsvFlag = Annotated[bool, typer.Option("--csv", help="Print every field of every entry, as CSV.")]
UNLIMITED = 10_000  # columns, where the output is not a terminal: a pipe has no width
FOLDED = 30  # columns that a text needs at least to be read when it is folded


def show(*tables: Table) -> None:
    """Print tables whole: nothing is cut off, also on a narrow terminal."""
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else UNLIMITED)
    for table in tables:
        console.print(fit_to_screen(console, table))


def fit_to_screen(console: Console, table: Table) -> RenderableType:
    """Fit a table to the screen, with its widest column folded if need be. If that is not enough, return a list of each
    row's fields, as long as there are rows: ids of two letters a line can't be copied."""
    options = console.options.update(max_width=UNLIMITED)
    excess = Measurement.get(console, options, table).maximum - console.width
    widths = [
        max([0, *(Measurement.get(console, options, cell).maximum for cell in column.cells)])
        for column in table.columns
    ]
    for column, width in zip(table.columns, widths, strict=True):
        column.overflow = "fold"
        column.no_wrap = width < max(widths)
    if excess <= 0 or not table.row_count or max(widths) - excess >= FOLDED:
        return table
    return _records(table)


def _records(table: Table) -> Table:
    """Return a table of two columns: the fields' names, and a row's values. Empty values are left out."""
    records = Table.grid(padding=(0, 2))
    records.title, records.title_justify = table.title, "left"
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        for column, cell in zip(table.columns, cells, strict=True):
            if str(cell):
                records.add_row(Text(str(column.header), style="bold"), cell)
        records.add_row()
    return records


def show_rows(
    title: str, headings: Mapping[str, str], rows: Sequence[Mapping[str, Any]], *, as_json: bool, as_csv: bool
) -> None:
    """Print a table of the fields that have headings; or all fields as JSON or CSV. Rows have the same fields."""
    if as_json:
        typer.echo(json.dumps(list(rows), indent=2, ensure_ascii=False))
    elif as_csv:
        columns = [name for name in rows[0] if name != "object"] if rows else list(headings)
        typer.echo(csv_text(columns, rows, header=True), nl=False)
    elif not rows:
        typer.echo(f"{title}: none.")
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
    if name in TIMES and isinstance(value, int | float):
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, Mapping):
        filled = {field: each for field, each in value.items() if each is not False and each not in (None, "", [])}
        return "; ".join(f"{field}: {_cell(field, each)}" for field, each in filled.items())
    return ", ".join(_cell(name, each) for each in value) if isinstance(value, list) else str(value)
