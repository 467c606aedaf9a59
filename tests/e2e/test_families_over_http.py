"""Every family of tiny checkpoints as operators and clients meet it: no 500, no spoiled image, no wrong refusal, and
what docs/reference/families.md says. `make families` drives the same and writes that page."""

from collections.abc import Iterator

import pytest

from benchmarks.families import PAGE, drive_family
from tests.support.harness import Server, assert_clean
from tests.support.tiny_families import FAMILIES, NEEDED
from tests.support.tiny_server import tiny_server

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = tiny_server(tmp_path_factory.mktemp("families")).start()
    yield running
    running.stop()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_does_over_http_what_the_page_says(server: Server, name: str) -> None:
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    driven = drive_family(server, name)
    assert driven.faults == []
    assert [cell for cell in zip(cells(PAGE.row(driven)), cells(documented(name)), strict=True) if differ(*cell)] == []


def documented(name: str) -> str:
    return next(line for line in PAGE.path.read_text().splitlines() if line.startswith(f"| {name} |"))


def cells(line: str) -> list[str]:
    """But for the last, which is a time."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")][:-1]


def differ(seen: str, written: str) -> bool:
    """But for what no run has written yet, and for rounding, which depends on the machine."""
    same = {"exact", "±1", "±2"}
    return written not in {"-", seen} and not {seen, written} <= same


def test_nothing_was_charged_twice_or_for_nothing(server: Server) -> None:
    assert_clean(server)
