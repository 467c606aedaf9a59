"""Shows how far the weights have been read for their SHA-256, which takes minutes when a server joins its first
cluster."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from server.flows.catalog.files import SendProgress

TENTHS = 10


@contextmanager
def reading_shown(console: Console) -> Iterator[SendProgress]:
    """Show the progress of reading: a bar on a terminal, a line for each tenth in a log. Nothing if there is nothing to
    read."""
    columns = (TextColumn("Reading the weights"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, visible=False)
        reported = -1

        def send(done: int, total: int) -> None:
            nonlocal reported
            bar.update(task, completed=done, total=total, visible=True)
            if (tenth := TENTHS * done // total) > reported and not console.is_terminal:
                percent = 100 * tenth // TENTHS
                console.print(f"Reading {decimal(total)} of weights, to compare them by SHA-256: {percent} %")
            reported = max(reported, tenth)

        yield send
