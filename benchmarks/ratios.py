"""What a benchmark says, and how it is shown."""

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
    aim: float | None = None

    @property
    def value(self) -> float:
        """Lower is better."""
        return self.measured_s / self.against_s


def show(ratios: Sequence[Ratio], title: str) -> Table:
    """For people."""
    table = Table("", "Measured", "Against", "Ratio", "Aim", title=title, caption="lower is better")
    for ratio in ratios:
        aim = "" if ratio.aim is None else f"< {ratio.aim:g}"
        table.add_row(ratio.name, f"{ratio.measured_s:.2f} s", f"{ratio.against_s:.2f} s", f"{ratio.value:.3f}", aim)
    return table


def write(ratios: Sequence[Ratio], device: str, folder: Path) -> None:
    """bench.json and bench.png."""
    record: dict[str, Any] = {"device": device}
    record |= {r.name: {"measured_s": r.measured_s, "against_s": r.against_s, "ratio": r.value} for r in ratios}
    (folder / "bench.json").write_text(json.dumps(record, indent=2) + "\n")
    _plot(ratios, device, folder / "bench.png")


def _plot(ratios: Sequence[Ratio], device: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.5 + 0.45 * len(ratios)), layout="constrained")
    bars = axes.barh([ratio.name for ratio in ratios], [ratio.value for ratio in ratios], color="#4a6fa5")
    axes.bar_label(bars, fmt="%.2f", label_type="center", color="white")
    for position, ratio in enumerate(ratios):
        if ratio.aim is not None:
            axes.plot([ratio.aim] * 2, [position - 0.4, position + 0.4], color="#c2452d", linewidth=2)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title(f"Ratios, lower is better; red: the aim ({device})", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
