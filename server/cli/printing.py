"""Tables on the screen, without what a server needs: such commands start fast."""

from rich.console import Console
from rich.table import Table
from rich.text import Text


def show(*tables: Table) -> None:
    console = Console(soft_wrap=True)
    for table in tables:
        console.print(table)


def add_row(table: Table, *cells: str) -> None:
    """Add a row of plain text: rich would read brackets in names as markup."""
    table.add_row(*map(Text, cells))
