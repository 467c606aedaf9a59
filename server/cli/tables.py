"""The tables of the command line, made with rich."""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from rich.table import Table

from pipelines.protocol.chat import ChatSpec
from pipelines.protocol.images import CheckpointSpec
from server.accounts import report
from server.accounts.chat_usage import list_chat_usage
from server.accounts.db import Database
from server.accounts.keys import list_keys
from server.accounts.money import format_money
from server.accounts.refusals import list_refusals
from server.cli.printing import add_row
from server.cli.serve import read_catalog
from server.settings import Settings


def catalog_tables(settings: Settings) -> list[Table]:
    """The models, with the state of their checkpoints from a running server, else from the disk. And the image workers
    of a running server."""
    readiness = _readiness(settings)
    tables = [_catalog_table(settings, readiness)]
    return [*tables, _workers_table(readiness["image"])] if "image" in readiness else tables


def _catalog_table(settings: Settings, readiness: Mapping[str, Any]) -> Table:
    states = {name: _short(state) for name, state in readiness.get("checkpoints", {}).items()}
    table = Table("Model", "Tier", "Price (CNY)", "Group", "Checkpoint", "State", title="Models")
    catalog = read_catalog(settings)
    for model in catalog.models.values():
        star = " *" if model.name == catalog.default else ""
        spec = model.checkpoint
        add_row(
            table,
            model.name + star,
            model.tier,
            format_money(model.price),
            model.group,
            spec.name,
            _state(spec, states),
        )
    for chat in catalog.chat.models.values():
        star = " *" if chat.name == catalog.chat.default else ""
        source = chat.source.name if isinstance(chat.source, ChatSpec) else chat.source.base_url
        state = _state(chat.source, states) if isinstance(chat.source, ChatSpec) else "upstream"
        add_row(table, chat.name + star, "chat", "", chat.group, source, state)
    table.caption = "* used when a call names no model"
    return table


def keys_table(database: Database) -> Table:
    """Oldest first."""
    table = Table(
        "Id", "Name", "Key", "Groups", "Budget", "Max running", "Per minute", "Created", "State", title="API keys"
    )
    for key in list_keys(database):
        state = "revoked" if key.revoked_at else f"until {key.expires_at:%Y-%m-%d}" if key.expires_at else "valid"
        budget = "no limit" if key.budget is None else format_money(key.budget)
        created = f"{key.created_at:%Y-%m-%d %H:%M}"
        max_running = "default" if key.max_running is None else str(key.max_running)
        per_minute = "no limit" if key.per_minute is None else str(key.per_minute)
        groups = ", ".join(sorted(key.groups))
        add_row(table, key.id, key.name, f"...{key.tail}", groups, budget, max_running, per_minute, created, state)
    return table


def balances_table(database: Database, key_id: str | None) -> Table:
    table = Table("Key", "Name", "Budget", "Spent", "Held", "Available", title="Balances (CNY)")
    for row in report.balances(database):
        if key_id in {None, row.key_id}:
            limits = ["no limit" if amount is None else format_money(amount) for amount in (row.budget, row.available)]
            add_row(table, row.key_id, row.name, limits[0], format_money(row.spent), format_money(row.held), limits[1])
    return table


def entries_table(database: Database, key_id: str | None, limit: int) -> Table:
    """The newest charges first."""
    table = Table("Time", "Key", "Call", "Model", "Amount", title="Charges (CNY)")
    for row in report.entries(database, key_id, limit):
        add_row(
            table,
            f"{row.created_at:%Y-%m-%d %H:%M:%S}",
            row.key_id,
            row.call_id,
            row.model,
            format_money(row.amount),
        )
    return table


def tokens_table(database: Database, key_id: str | None) -> Table:
    table = Table("Key", "Model", "Chats", "Prompt tokens", "Completion tokens", title="Chats (not billed)")
    for row in list_chat_usage(database, key_id):
        add_row(table, row.key_id, row.model, str(row.chats), str(row.prompt_tokens), str(row.completion_tokens))
    return table


def refusals_table(database: Database, key_id: str | None, limit: int) -> Table:
    """Newest first."""
    table = Table(
        "Time", "Key", "Call", "Model", "Stage", "Policy", "Category", "Evidence", title="Refused by moderation"
    )
    for row in list_refusals(database, key_id, limit):
        when = f"{row.created_at:%Y-%m-%d %H:%M:%S}"
        add_row(table, when, row.key_id, row.call_id, row.model, row.stage, row.policy, row.category, row.evidence)
    return table


def _workers_table(workers: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        "Worker", "Device", "State", "Jobs", "Work (s)", "Weights (GiB)", "Checkpoints", title="Image workers"
    )
    for worker in workers:
        state = "ready" if worker["ready"] else worker["problem"] or "starting"
        budget = worker["weights_budget_bytes"]
        weights = f"{worker['weights_bytes'] / 2**30:.2f}" + (f" of {budget / 2**30:.1f}" if budget else "")
        listed = [each["name"] + ("" if each["on_device"] else " (in host memory)") for each in worker["checkpoints"]]
        listed += [f"{name} failed" for name in worker["failed"]]
        cells = [worker["name"], worker["device"] or "", state, str(worker["jobs"]), f"{worker['work_s']:g}", weights]
        add_row(table, *cells, "\n".join(listed))
    return table


def _readiness(settings: Settings) -> Mapping[str, Any]:
    """What a running server tells its operator; nothing if none runs."""
    try:
        headers = {"Authorization": f"Bearer {settings.admin_key.read_text().strip()}"}
        response = httpx.get(f"{settings.local_url}/readyz", headers=headers, timeout=1, trust_env=False)
        found: Mapping[str, Any] = response.json()
    except (OSError, httpx.HTTPError, httpx.InvalidURL, ValueError):
        return {}  # the disk shows which checkpoints exist
    return found if "checkpoints" in found else {}


def _short(state: Mapping[str, str]) -> str:
    """With what failed in warmup, or why it did not load; its path is left out."""
    found = state["detail"].split("; ")
    reasons = found[1:] if state["state"] == "loaded" else found
    return "\n".join([state["state"], *reasons])


def _state(spec: CheckpointSpec | ChatSpec, states: Mapping[str, str]) -> str:
    return states.get(spec.name) or ("on disk" if spec.path.exists() else "missing")
