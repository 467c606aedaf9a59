"""One JSON line for each figure, and a table of them at the end of a part."""

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

PART_S = 600  # that a part may take


@dataclass(slots=True)
class Report:
    """What a part has measured."""

    part: str
    figures: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    @property
    def has_time(self) -> bool:
        """Whether the part may begin with something else that takes up to two minutes."""
        return time.perf_counter() - self.began < PART_S - 120

    def add(self, what: str, value: object, unit: str = "", *, goal: str = "", **facts: object) -> None:
        """`goal` is what the value should be, for people."""
        optional = {"unit": unit, "goal": goal}
        figure = {"part": self.part, "what": what, "value": _rounded(value)}
        figure |= {name: text for name, text in optional.items() if text}
        figure |= {name: _rounded(fact) for name, fact in facts.items()}
        self.figures.append(figure)
        print(json.dumps(figure), flush=True)

    def show(self) -> None:
        """The table, on standard error: standard output has the JSON lines alone."""
        rows = [
            (
                str(figure["what"]),
                f"{figure['value']} {figure.get('unit', '')}".strip(),
                str(figure.get("goal", "")),
                ", ".join(f"{name} {fact}" for name, fact in figure.items() if name not in COLUMNS),
            )
            for figure in self.figures
        ]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        print(f"\n{self.part}", file=sys.stderr)
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)]
            print("  ".join([*cells, row[3]]).rstrip(), file=sys.stderr)


COLUMNS = {"part", "what", "value", "unit", "goal"}


def _rounded(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value
