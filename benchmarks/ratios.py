"""The results of the benchmarks, as a table, JSON and a chart."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Ratio:
    """Seconds of one thing over seconds of another, in the same run."""

    name: str
    measured_s: float
    against_s: float
    target: float | None = None

    @property
    def value(self) -> float:
        """Lower is better."""
        return self.measured_s / self.against_s


def show(ratios: Sequence[Ratio], title: str) -> Table:
    """For the terminal."""
    table = Table("", "Measured", "Against", "Ratio", "Target", title=title, caption="lower is better")
    for ratio in ratios:
        target = "" if ratio.target is None else f"< {ratio.target:g}"
        table.add_row(ratio.name, f"{ratio.measured_s:.2f} s", f"{ratio.against_s:.2f} s", f"{ratio.value:.3f}", target)
    return table


def write(ratios: Sequence[Ratio], device: str, folder: Path) -> None:
    record: dict[str, Any] = {"device": device}
    record |= {r.name: {"measured_s": r.measured_s, "against_s": r.against_s, "ratio": r.value} for r in ratios}
    (folder / "bench.json").write_text(json.dumps(record, indent=2) + "\n")
    _plot([ratio for ratio in ratios if ratio.target is not None], device, folder / "bench.png")


def _plot(ratios: Sequence[Ratio], device: str, path: Path) -> None:
    """Those with a target: others can be ten times as long."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.5 + 0.45 * len(ratios)), layout="constrained")
    bars = axes.barh([ratio.name for ratio in ratios], [ratio.value for ratio in ratios], color="#4a6fa5")
    axes.bar_label(bars, fmt="%.2f", label_type="edge", padding=8)
    for position, ratio in enumerate(ratios):
        axes.plot([ratio.target] * 2, [position - 0.4, position + 0.4], color="#c2452d", linewidth=2)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title(f"Ratios, lower is better; red: the target ({device})", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
