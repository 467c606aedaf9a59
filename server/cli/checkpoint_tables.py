"""The output of `darkroom checkpoints`. It imports no server, so that looking at a checkpoint takes no time."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from pipelines.checkpoints.folder.libraries import how_to_install
from server.cli.admin_client import read_if_running
from server.cli.printing import add_row
from server.flows.operators.checkpoints import CheckpointManager
from server.schemas.base import Answer
from server.schemas.checkpoints import (
    AdapterCard,
    AdapterList,
    CheckpointCard,
    CheckpointFindings,
    CheckpointList,
    adapter_card,
)
from server.settings import Settings

Shape = TypeVar("Shape", bound=Answer)


def adapters_table(settings: Settings) -> Table:
    """Return the table of adapters, from the running server, else from the disk, which does not know which of them
    fit."""
    table = Table("Model", "Adapter", "Kind", "Size", "Rank", "Trigger words", "Few steps", "Fits", title="Adapters")
    for card in _adapter_cards(settings):
        words, rank = ", ".join(card.trigger_words), "" if card.rank is None else str(card.rank)
        add_row(
            table, card.model, card.name, card.kind, _size(card.bytes), rank, words, card.few_steps or "", _fit(card)
        )
    return table


def _fit(card: AdapterCard) -> str:
    """Describe how an adapter fits, such as "yes, 64 layers", "LoRA, 48 of 64 layers" or the reason why it does not."""
    if card.problem or card.reason:
        return card.problem or str(card.reason)
    if card.fits:
        return f"yes, {card.fitting_layers} layers"
    return "not tried" if card.fits is None else "no"


def _adapter_cards(settings: Settings) -> list[AdapterCard]:
    if (listed := _from_server(settings, "/admin/checkpoints/adapters", AdapterList)) is not None:
        return listed.data
    found = CheckpointManager(settings.model_configs, settings.weights).adapters()
    return [adapter_card(model, adapter) for model, adapters in found.items() for adapter in adapters]


def _from_server(settings: Settings, route: str, shape: type[Shape]) -> Shape | None:
    """Ask the running server; None if it does not answer."""
    found = read_if_running(settings, route, timeout_s=60)
    return None if found is None else shape.model_validate(found)


def checkpoints_table(cards: Sequence[CheckpointCard]) -> Table:
    """Return the table of checkpoints, with sizes and times for people."""
    table = Table("Checkpoint", "Size", "State", "Last used", "Verifiable", "Models", title="Image checkpoints")
    for card in cards:
        used = f"{datetime.fromtimestamp(card.last_used, UTC):%Y-%m-%d %H:%M}" if card.last_used else ""
        sums = "yes" if card.verifiable else "no"
        add_row(table, card.name, _size(card.bytes), card.state, used, sums, ", ".join(card.models))
    return table


def checkpoint_cards(settings: Settings) -> list[CheckpointCard]:
    """List the checkpoints, from the running server, else from the disk, which does not know of loading or use."""
    if (listed := _from_server(settings, "/admin/checkpoints", CheckpointList)) is not None:
        return listed.data
    found = CheckpointManager(settings.model_configs, settings.weights).list_all()
    return [
        CheckpointCard(
            name=each.name,
            bytes=each.bytes,
            models=list(each.models),
            state=each.state,
            detail="",
            verifiable=each.has_manifest,
            last_used=None,
        )
        for each in found
    ]


def show_report(report: CheckpointFindings) -> None:
    """Print the report of `darkroom checkpoints inspect`."""
    console = Console(soft_wrap=True, highlight=False)
    parts = Table("Component", "Class", "Weights", "Size", "Type", title=report.class_name or "Not a checkpoint")
    for part in report.parts:
        if part.weights:
            weights = f"{part.weights / 1e6:,.1f} M"
            add_row(parts, part.name, part.class_name, weights, _size(part.bytes), ", ".join(part.dtypes))
    if report.parts:
        console.print(parts)
    lines = {
        "path": report.path,
        "base": report.base,
        "config": report.config,
        "variants": ", ".join(report.variants),
        "problem": "\n".join(report.problems),
        "note": "\n".join(report.notes),
        "needs": f"{', '.join(report.needs)}, not installed: {how_to_install(report.needs)}" if report.needs else "",
        "on a GPU": f"{_size(report.bytes_in_bfloat16)} in bfloat16" if report.parts else None,
        "on a CPU": f"{_size(report.bytes_in_float32)} in float32" if report.parts else None,
        "promises": ", ".join([*report.supports, *(["2K and 4K"] if report.second_pass else [])]),
        "conditioning": report.conditioning if report.supports else None,
    }
    for name, text in lines.items():
        if text:
            console.print(f"{name:15} {text}", markup=False)
    for name, suggested in report.suggested.items() if report.supports else ():
        console.print(f"{name:15} {suggested.value:.10g}  ({suggested.found})", markup=False)
    for name, value in {"scheduler": report.noise.scheduler, **report.noise.scheduler_config}.items():
        if value is not None:
            console.print(f"{name:15} {value}  ({report.noise.found})", markup=False)


def _size(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
