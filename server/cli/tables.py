"""The tables of the command line, made with rich."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from pipelines.protocol.chat import ChatSpec
from pipelines.protocol.images import CheckpointSpec
from server.accounts import report
from server.accounts.db import Database
from server.accounts.paging import Page
from server.accounts.teams import team_names
from server.accounts.usage import list_chat_usage
from server.catalog.images import ImageModel
from server.cli.admin_client import read_if_running
from server.cli.environment import read_catalog
from server.cli.printing import add_row
from server.flows.operators.periods import read_period
from server.flows.operators.reports import key_names, ledger_entries
from server.money import format_money, optional_money
from server.settings import Settings

MODEL_HEADINGS = {
    "model": "Model", "tier": "Tier", "price": "Price (CNY)", "group": "Group", "checkpoint": "Checkpoint",
    "state": "State",
}  # fmt: skip


def model_rows(settings: Settings, readiness: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the models, with the state of their checkpoints from a running server, else from the disk."""
    catalog = read_catalog(settings)
    rows: list[dict[str, Any]] = [
        {
            "model": model.name,
            "tier": model.tier,
            "price": format_money(model.price_units),
            "group": model.group,
            "checkpoint": _checkpoint(model.checkpoint),
            "state": _image_state(model, readiness),
            "default": model.name == catalog.default,
        }
        for model in catalog.models.values()
    ]
    for chat in catalog.chat.models.values():
        rows.append(
            {
                "model": chat.name,
                "tier": "chat",
                "price": None,
                "group": chat.group,
                "checkpoint": chat.place,
                "state": _state(chat.name, chat.spec, readiness) if chat.spec else "upstream",
                "default": chat.name == catalog.chat.default,
            }
        )
    return rows


def model_tables(rows: Sequence[Mapping[str, Any]], readiness: Mapping[str, Any]) -> list[Table]:
    """Return the tables of the models, and of the image workers of a running server."""
    table = Table(*MODEL_HEADINGS.values(), title="Models", caption="* used when a call names no model")
    for row in rows:
        shown = {**row, "model": row["model"] + (" *" if row["default"] else "")}
        add_row(table, *(str(shown[name] or "") for name in MODEL_HEADINGS))
    return [table, *([_workers_table(readiness["image"])] if "image" in readiness else [])]


def balances_table(database: Database, key_id: str | None) -> Table:
    """Return the table of the keys' balances in CNY, or of one key's."""
    table = Table("Key", "Name", "Budget", "Spent", "Held", "Available", title="Balances (CNY)")
    for row in report.balances(database):
        if key_id in {None, row.key_id}:
            amounts = (row.budget_units, row.spent_units, row.held_units, row.available_units)
            add_row(table, row.key_id, row.name, *(optional_money(each) or "no limit" for each in amounts))
    return table


def charges(
    database: Database, key_id: str | None, since: str | None, to: str | None, limit: int
) -> list[dict[str, Any]]:
    """List the charges of all keys or one, the newest first: `limit` of them, and one more if there are more."""
    found = report.entries(database, key_id, Page(limit), period=read_period(since, to))
    return [entry.model_dump() for entry in ledger_entries(found, key_names(database), team_names(database))]


def tokens_table(database: Database, key_id: str | None) -> Table:
    """Return the table of the chats' tokens, of all keys or one."""
    table = Table("Key", "Model", "Chats", "Prompt tokens", "Completion tokens", title="Chats (not billed)")
    for row in list_chat_usage(database, key_id):
        add_row(table, row.key_id, row.model, str(row.chats), str(row.prompt_tokens), str(row.completion_tokens))
    return table


def _workers_table(workers: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        "Worker", "Device", "State", "Jobs", "Work (s)", "Weights (GiB)", "Checkpoints", title="Image workers"
    )
    for worker in workers:
        state = "\n".join(filter(None, ["ready" if worker["ready"] else None, worker["problem"]])) or "starting"
        if worker["sleep"] != "awake":
            state = f"{worker['sleep']}, back in about {worker['wake_s']:g} s"
        budget = worker["weights_budget_bytes"]
        weights = f"{worker['weights_bytes'] / 2**30:.2f}" + (f" of {budget / 2**30:.1f}" if budget else "")
        listed = [each["name"] + ("" if each["on_device"] else " (in host memory)") for each in worker["checkpoints"]]
        listed += [f"{name} failed: {reason}" for name, reason in worker["failed"].items()]
        cells = [worker["name"], worker["device"] or "", state, str(worker["jobs"]), f"{worker['work_s']:g}", weights]
        add_row(table, *cells, "\n".join(listed))
    return table


def read_readiness(settings: Settings) -> Mapping[str, Any]:
    """Ask a running server for the details that it tells its operator; none if none runs."""
    found: Mapping[str, Any] | None = read_if_running(settings, "/readyz", timeout_s=5)
    return found if found and "checkpoints" in found else {}  # the disk shows which checkpoints exist


def _short_state(state: Mapping[str, Any]) -> str:
    """Describe a state with the checks that failed in warmup, or the reason why it did not load; its path is left
    out."""
    found = state["detail"].split("; ")
    reasons = found if state["state"] == "failed" else found[1:]
    return "\n".join([state["state"], *reasons])


def _checkpoint(spec: CheckpointSpec) -> str:
    return spec.name if spec.upstream is None else f"{spec.name} at {spec.upstream.base_url}"


def _image_state(model: ImageModel, readiness: Mapping[str, Any]) -> str:
    """Describe the state of a model's checkpoint; and that of the one for calls with references, if it failed."""
    state, *other = [_state(model.name, spec, readiness) for spec in model.checkpoints]
    return "\n".join([state, *(f"with references: {each}" for each in other if each.startswith(("failed", "missing")))])


def _state(model: str, spec: CheckpointSpec | ChatSpec, readiness: Mapping[str, Any]) -> str:
    """Describe the state of a model's checkpoint: of its own spec, which may have the name of others."""
    labels = readiness.get("models", {}).get(model, ())
    own = [label for label in (f"{spec.name} ({spec.source})", spec.name) if label in labels]
    own += [label for label in labels if label.startswith(f"{spec.name} (")]  # of another file with an equal one
    if own:
        return _short_state(readiness["checkpoints"][own[0]])
    if isinstance(spec, CheckpointSpec) and spec.upstream is not None:
        return "upstream"
    return "on disk" if spec.path.exists() else "missing"
