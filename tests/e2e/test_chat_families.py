"""Families of chat models, through a server, as docs/reference/chat-families.md says. Skipped by name where the package
with the published templates can't be had."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.chat_families import FAMILIES
from tests.support.chat_family_drive import drive_chat
from tests.support.chat_family_server import family_server, in_groups
from tests.support.harness import REPOSITORY, assert_clean

pytestmark = pytest.mark.nightly
PAGE = REPOSITORY / "docs" / "reference" / "chat-families.md"


@pytest.mark.parametrize("names", in_groups(list(FAMILIES)), ids=lambda names: names[0])
def test_families_do_what_the_page_says(names: Sequence[str], tmp_path: Path) -> None:
    server = family_server(tmp_path, names).start()
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    said = {row[0].removeprefix("| "): row[2:] for row in rows}
    try:
        for name in names:
            driven = drive_chat(server, name)
            assert driven.faults == [], name
            if name in said:  # the page has those that its last run reached
                assert [*driven.cells.values()] == [cell.removesuffix(" |") for cell in said[name]]
        assert_clean(server)
    finally:
        server.stop()
