"""`make bench BASE=commit`: two commits serve beside each other, and take turns at the same calls.

The base is unpacked into a folder and runs from there, with its own weights and catalog and with the packages of this
environment. Both servers stay up and idle while the other one is measured. Seconds are counted twice: by the clock, and
as processor time of the server and all its processes, which other programs change less.
"""

import io
import os
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rich.table import Table

from benchmarks.calls import CONCURRENT, DRAFT, at_once, draft_beside_large, post
from benchmarks.pairs import FEWEST_PAIRS, MOST_PAIRS, Comparison
from server.catalog.images import load_catalog
from tests.support.harness import REPOSITORY, Server

TICKS = os.sysconf("SC_CLK_TCK")
CLOCK, PROCESSOR = "by the clock", "processor time"
HEAD_START_S = 0.5  # of the 4K image before the draft
Work = Callable[[Server], object]
Side = TypeVar("Side")


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of a round: by the clock, and of the processor."""

    clock_s: float
    processor_s: float


def unpack(commit: str, folder: Path) -> Path:
    """Write the files of a commit into a folder. Raises SystemExit for a commit that is not here."""
    archive = subprocess.run(["git", "archive", commit], cwd=REPOSITORY, capture_output=True, check=False)
    if archive.returncode:
        raise SystemExit(f"BASE={commit}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


@contextmanager
def serving(code: Path, home: Path) -> Iterator[Server]:
    """A server of this checkout, with its own weights and catalog."""
    program = "darkroom" if (code / "darkroom" / "__main__.py").exists() else "server"  # its name before 0.4
    server = Server(home, code / "weights", code / "model_configs", program=program, code=code)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def works(default: str) -> Mapping[str, Work]:
    """What is measured, by its name."""

    def one(model: str, server: Server) -> None:
        with server.http() as client:
            post(client, model, 1)

    return {
        f"one call, {default}": lambda server: one(default, server),
        f"one call, {DRAFT}": lambda server: one(DRAFT, server),
        f"{CONCURRENT} calls at once, {default}": lambda server: at_once(server, default),
        f"{CONCURRENT} calls at once, {DRAFT}": lambda server: at_once(server, DRAFT),
        "a 4K image, and a draft beside it": lambda server: draft_beside_large(server, HEAD_START_S),
    }


def compare(commit: str, folder: Path, most_pairs: int = MOST_PAIRS) -> Iterator[Comparison]:
    """Measure this checkout against a commit: a comparison by the clock and one by processor time for each work, as
    they are found. `folder` gets the commit's files and both homes."""
    default = load_catalog(REPOSITORY / "model_configs", REPOSITORY / "weights").default
    with ExitStack() as stack:
        base = stack.enter_context(serving(unpack(commit, folder / "base"), folder / "base-home"))
        new = stack.enter_context(serving(REPOSITORY, folder / "new-home"))
        for name, work in works(default).items():
            yield from paired(name, lambda server, work=work: measured(server, work), base, new, most_pairs)


def paired(name: str, measure: Callable[[Side], Round], base: Side, new: Side, most_pairs: int) -> Iterator[Comparison]:
    """Measure both in pairs of rounds, whose first is the other one each time, after one that does not count: until the
    interval by the clock is narrow enough, or there are so many."""
    for side in (base, new):
        measure(side)
    clock, processor = Comparison(name, (), ()), Comparison(name, (), ())
    while len(clock.base_s) < most_pairs and not (len(clock.base_s) >= FEWEST_PAIRS and clock.is_settled):
        if len(clock.base_s) % 2 == 0:
            old, own = measure(base), measure(new)
        else:
            own, old = measure(new), measure(base)
        clock = replace(clock, base_s=(*clock.base_s, old.clock_s), new_s=(*clock.new_s, own.clock_s))
        processor = replace(
            processor, base_s=(*processor.base_s, old.processor_s), new_s=(*processor.new_s, own.processor_s)
        )
    yield replace(clock, name=f"{name}, {CLOCK}")
    yield replace(processor, name=f"{name}, {PROCESSOR}")


def measured(server: Server, work: Work) -> Round:
    """The seconds of a round on a server."""
    used, began = processor_s(server), time.perf_counter()
    work(server)
    clock_s = time.perf_counter() - began
    return Round(clock_s, processor_s(server) - used)


def processor_s(server: Server) -> float:
    """Return the processor time of a server's processes so far, and of those of them that have ended."""
    assert server.process is not None
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))  # of its own, and of children that have ended

    def is_own(process: int) -> bool:
        return process == server.process.pid or (process in parents and is_own(parents[process]))  # type: ignore[union-attr]

    return sum(own for process, own in ticks.items() if is_own(process)) / TICKS


def table(found: list[Comparison], commit: str) -> Table:
    """Return what was found, for the terminal."""
    shown = Table("", "Base", "Now", "Ratio (99 % between)", "Pairs", "", title=f"Against {commit}")
    for each in found:
        low, high = each.interval
        seconds = [f"{sorted(rounds)[len(rounds) // 2]:.2f} s" for rounds in (each.base_s, each.new_s)]
        shown.add_row(
            each.name, *seconds, f"{each.ratio:.3f} ({low:.3f} to {high:.3f})", str(len(each.base_s)), each.verdict
        )
    return shown
