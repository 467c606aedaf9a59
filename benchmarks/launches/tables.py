"""The counts of published checkpoints as tables in Markdown: each cell is eager, then as served by default."""

from collections.abc import Callable, Iterable
from functools import partial

from rich.box import MARKDOWN
from rich.markup import escape
from rich.table import Table

from benchmarks.launches.chips import CHIPS, LAUNCH_S, Chip
from benchmarks.launches.passes import Counted, Drawing, counted
from benchmarks.launches.tally import Work

Counts = list[tuple[Drawing, Counted]]


def tables(drawings: Iterable[Drawing]) -> Iterable[Table]:
    """Count passes, and yield the table of their work, and that of the seconds of an image's steps."""
    found = [(drawing, each) for drawing in drawings for each in counted(drawing)]
    yield _counts(found)
    yield _seconds(found)


def _counts(found: Counts) -> Table:
    columns = "kernels", "of them small", "launched by the host", "small operations, GB", "products, attention, TFLOP"
    table = Table("", "px", *columns, box=MARKDOWN, title="A pass: eager, as served by default")
    for drawing, each in found:
        both = partial(_both, each)
        flop = (each.served.flop(kind) / 1e12 for kind in ("product", "attention"))
        table.add_row(
            escape(drawing.name), str(each.side_px), both(lambda work: f"{work.launches():,}"),
            both(lambda work: f"{work.launches('small'):,}"), both(lambda work: f"{work.host_launches:,}"),
            both(lambda work: f"{work.bytes('small') / 1e9:.0f}"), ", ".join(f"{tera:.1f}" for tera in flop),
        )  # fmt: skip
    return table


def _seconds(found: Counts) -> Table:
    title = f"Seconds of an image's steps, at {LAUNCH_S * 1e6:.0f} us a launch: eager, as served by default"
    table = Table("", "px", "passes", *(chip.name for chip in CHIPS), box=MARKDOWN, title=title)
    for drawing, each in found:
        cells = (_both(each, partial(_image_s, drawing, chip)) for chip in CHIPS)
        table.add_row(escape(drawing.name), str(each.side_px), str(drawing.steps * drawing.passes), *cells)
    return table


def _image_s(drawing: Drawing, chip: Chip, work: Work) -> str:
    return f"{drawing.steps * drawing.passes * chip.seconds(work):.2f}"


def _both(counts: Counted, text: Callable[[Work], str]) -> str:
    return f"{text(counts.eager)}, {text(counts.served)}"
