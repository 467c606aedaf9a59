"""A page of docs/reference with a table of families, of which a command writes the rows that it drove."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

END: Final = "<!-- end of it -->\n"


class Row(Protocol):
    """What was seen of a family."""

    name: str
    class_name: str
    cells: dict[str, str]


@dataclass(frozen=True, slots=True)
class FamilyPage:
    """A page, and the table in it."""

    path: Path
    command: str  # that writes it
    columns: Mapping[str, str]  # of the table -> of what was seen
    order: Sequence[str]  # of the families

    def row(self, driven: Row) -> str:
        """Return a family's line of the table."""
        cells = [
            driven.name,
            f"`{driven.class_name}`",
            *(driven.cells.get(seen, "-") for seen in self.columns.values()),
        ]
        return f"| {' | '.join(cells)} |\n"

    def write(self, found: Iterable[Row]) -> None:
        """Write the rows of these families; others stay as they are."""
        begin = f"<!-- {self.command} writes this table -->\n"
        before, _, rest = self.path.read_text().partition(begin)
        kept, _, after = rest.partition(END)
        rows = {line.split("|")[1].strip(): f"{line}\n" for line in kept.splitlines()[2:]}
        rows |= {driven.name: self.row(driven) for driven in found}
        head = ["checkpoint", "class", *self.columns]
        lines = "".join(rows[name] for name in self.order if name in rows)
        table = f"| {' | '.join(head)} |\n|{' --- |' * len(head)}\n{lines}"
        self.path.write_text(f"{before}{begin}{table}{END}{after}")
