"""Families of chat models, through a server, as docs/reference/chat-families.md says. Skipped by name where the package
with the published templates can't be had."""

from pathlib import Path

import pytest

from tests.support.harness import REPOSITORY, assert_clean

pytestmark = pytest.mark.nightly
PAGE = REPOSITORY / "docs" / "reference" / "chat-families.md"
GROUPS = 9  # of families, each in a server


@pytest.mark.parametrize("group", range(GROUPS))
def test_families_do_what_the_page_says(group: int, tmp_path: Path) -> None:
    # here, so that collecting tests does not load forty models' code
    from tests.support.chat_families import FAMILIES
    from tests.support.chat_family_drive import drive_chat
    from tests.support.chat_family_server import family_server, in_groups

    groups = list(in_groups(list(FAMILIES)))
    assert len(groups) == GROUPS
    server = family_server(tmp_path, groups[group]).start()
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    said = {row[0].removeprefix("| "): [cell.removesuffix(" |") for cell in row[2:]] for row in rows}
    try:
        for name in groups[group]:
            driven = drive_chat(server, name)
            assert driven.faults == [], name
            if name in said:  # the page has those that its last run reached
                assert driven.cells == dict(zip(said["checkpoint"], said[name], strict=True))
        assert_clean(server)
    finally:
        server.stop()
