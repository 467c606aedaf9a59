"""Listings on terminals of any width: nothing is cut off, and ids stay whole."""

import json
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from server.cli.printing import fit_to_screen, show_rows

KEY = "key_623d16eba3b84a469139"


def listing(*rows: tuple[str, ...], columns: int) -> Table:
    table = Table("Id", *(f"Column {number}" for number in range(1, columns)), title="Keys")
    for row in rows:
        table.add_row(*row, *[""] * (columns - len(row)))
    return table


def printed(table: Table, width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(fit_to_screen(console, table))
    return [line.strip() for line in capture.get().splitlines()]


def test_a_table_that_fits_is_a_table() -> None:
    assert any("│" in line and KEY in line for line in printed(listing((KEY, "dev"), columns=3), 80))


def test_one_long_text_is_folded_and_the_id_is_not() -> None:
    lines = printed(listing((KEY, "word " * 40), columns=2), 80)
    assert sum("word" in line for line in lines) > 2
    assert sum(KEY in line for line in lines) == 1


@pytest.mark.parametrize("width", [40, 80])
def test_a_table_that_is_too_wide_is_a_list_of_fields(width: int) -> None:
    lines = printed(listing((KEY, "dev"), (KEY[::-1], "web shop"), columns=15), width)
    assert [line.split("  ")[0] for line in lines if line] == ["Keys", "Id", "Column 1", "Id", "Column 1"]
    assert any(line.endswith(KEY) for line in lines)
    assert any(line.endswith("web shop") for line in lines)


def test_an_empty_table_is_a_table() -> None:
    assert len(printed(listing(columns=15), 80)) > 2


@pytest.mark.parametrize(
    ("details", "shown"),
    [
        (
            {"name": "dev", "groups": ["a", "b"], "budget": None, "note": "", "keepalive": False},
            "name: dev; groups: a, b",
        ),
        ({"budget": [None, "50.00"]}, "budget: , 50.00"),
        ({"expires_at": 0.0}, "expires_at: 1970-01-01 00:00:00"),
    ],
)
def test_details_are_shown_without_what_is_empty(
    details: dict[str, Any], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_rows("Changes", {"details": "Details"}, [{"details": details}], as_json=False, as_csv=False)
    assert f"│ {shown} " in capsys.readouterr().out
    show_rows("Changes", {"details": "Details"}, [{"details": details}], as_json=False, as_csv=True)
    assert json.loads(capsys.readouterr().out.splitlines()[1].strip('"').replace('""', '"')) == details
