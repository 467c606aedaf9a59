"""The results of the benchmarks, as a table, JSON and a chart."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

CAPTION = "lower is better; of several rounds the median, and the lowest and highest ratio"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Seconds of one thing over seconds of another, of the rounds of one run. Where both have as many, those beside
    each other were measured one after the other."""

    name: str
    measured: Sequence[float]
    against: Sequence[float]
    target: float | None = None
    unit: str = "s"

    @property
    def measured_s(self) -> float:
        """Return the median round."""
        return median(self.measured)

    @property
    def against_s(self) -> float:
        """Return the median round."""
        return median(self.against)

    @property
    def value(self) -> float:
        """Return the ratio of the medians: lower is better."""
        return self.measured_s / self.against_s

    @property
    def spread(self) -> tuple[float, float] | None:
        """Return the lowest and the highest ratio that a single round would have shown; None of a single round."""
        if len(self.measured) == len(self.against) == 1:
            return None
        if len(self.measured) == len(self.against):
            ratios = [one / other for one, other in zip(self.measured, self.against, strict=True)]
            return min(ratios), max(ratios)
        return min(self.measured) / max(self.against), max(self.measured) / min(self.against)


def show(ratios: Sequence[Ratio], title: str) -> Table:
    """For the terminal."""
    table = Table("", "Measured", "Against", "Ratio", "Rounds", "Target", title=title, caption=CAPTION)
    for ratio in ratios:
        target = "" if ratio.target is None else f"< {ratio.target:g}"
        rounds = "one" if ratio.spread is None else "{:.2f} to {:.2f}".format(*ratio.spread)
        medians = (f"{each:.2f} {ratio.unit}".strip() for each in (ratio.measured_s, ratio.against_s))
        table.add_row(ratio.name, *medians, f"{ratio.value:.3f}", rounds, target)
    return table


def write(ratios: Sequence[Ratio], device: str, folder: Path) -> None:
    record: dict[str, Any] = {"device": device}
    record |= {
        each.name: {
            "measured_s": list(each.measured), "against_s": list(each.against), "ratio": each.value,
            "spread": each.spread,
        }
        for each in ratios
    }  # fmt: skip
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
        if ratio.spread is not None:
            axes.plot(ratio.spread, [position] * 2, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title(f"Ratios, lower is better; black: the rounds, red: the target ({device})", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
