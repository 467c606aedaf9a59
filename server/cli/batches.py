"""`darkroom batches`: the batches of every key, and their lines that failed."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.cli.environment import fail, open_database, read_settings, user
from server.cli.printing import CsvFlag, JsonFlag, show_rows
from server.cli.reports import ALL, KeyFilter, Limit, find_key_id, limit_entries, limit_of

if TYPE_CHECKING:
    from server.accounts.batches import Batch, BatchLine, BatchStore

app = typer.Typer(no_args_is_help=True, help="The batches of all keys: list, show, cancel.")
BatchArgument = Annotated[str, typer.Argument(help="The batch's id.")]
HEADINGS = {
    "id": "Id", "key_name": "Key", "state": "State", "total": "Lines", "completed": "Completed", "failed": "Failed",
    "created_at": "Began", "expires_at": "Expires", "ended_at": "Ended",
}  # fmt: skip


@app.command("list")
def list_all(key: KeyFilter = None, entries: Limit = None, as_json: JsonFlag = False, as_csv: CsvFlag = False) -> None:
    """List batches, newest first, with the counts of their lines."""
    from dataclasses import asdict

    from server.accounts.batches import BatchStore
    from server.accounts.paging import Page
    from server.flows.operators.reports import key_names

    database = open_database(read_settings())
    limit = limit_of(entries, exported=as_json or as_csv)
    found = limit_entries(BatchStore(database).page(find_key_id(key), Page(limit)), limit)
    names = key_names(database)
    rows = [asdict(batch) | {"key_name": names.get(batch.key_id, "")} for batch in found]
    show_rows("Batches", HEADINGS, rows, as_json=as_json, as_csv=as_csv)


@app.command("show")
def show(batch: BatchArgument, as_json: JsonFlag = False, as_csv: CsvFlag = False) -> None:
    """Say how far a batch is, and list its lines that failed; with --json or --csv, all lines."""
    from server.accounts.batches import BatchStore

    store = BatchStore(open_database(read_settings()))
    found = _find(store, batch)
    lines = store.answered(batch, -1, ALL, all_lines=as_json or as_csv)
    rows = [_line(line) for line in lines if as_json or as_csv or (line.status or 0) >= 400]
    if not (as_json or as_csv):
        done = f"{found.completed} of {found.total} lines completed, {found.failed} failed"
        typer.echo(f"{found.id}: {found.state}, {done}.")
    headings = {"custom_id": "Line", "url": "Route", "status": "Status", "code": "Error", "message": "Message"}
    if rows or as_json or as_csv:
        show_rows("Lines", headings, rows, as_json=as_json, as_csv=as_csv)


@app.command("cancel")
def cancel(batch: BatchArgument) -> None:
    """Begin no more lines of a batch. Those that run end as they do."""
    from server.accounts.audit import record_change
    from server.accounts.batches import BatchStore

    database = open_database(read_settings())
    store = BatchStore(database)
    found = _find(store, batch)
    store.cancel(batch, found.key_id)
    record_change(database, user(), "batch.cancel", batch, key_id=found.key_id)
    after = _find(store, batch)
    typer.echo(f"{after.id}: {after.state}, {after.completed + after.failed} of {after.total} lines have an answer.")


def _find(store: "BatchStore", batch_id: str) -> "Batch":
    batch = store.find(batch_id, None)
    if batch is None:
        fail(f"There is no batch '{batch_id[:60]}'. `darkroom batches list` shows them.")
    return batch


def _line(line: "BatchLine") -> dict[str, Any]:
    error = (json.loads(line.answer or "{}").get("error") if (line.status or 0) >= 400 else None) or {}
    shown = {"custom_id": line.custom_id, "url": line.url, "status": line.status, "request_id": line.request_id}
    return {**shown, "code": error.get("code"), "message": error.get("message")}
