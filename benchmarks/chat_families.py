"""`make chat-families`: every family of tiny chat checkpoints through a real server, over HTTP. Writes the table of
docs/reference/chat-families.md from what was seen, and ends with an error if anything was not as it must be.

    python -m benchmarks.chat_families [NAME ...]

With names, only those are driven, and only their rows are written.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded; the server has the other core

from benchmarks.family_page import FamilyPage
from tests.support.chat_families import FAMILIES
from tests.support.chat_family_drive import DrivenChat, drive_chat
from tests.support.chat_family_server import family_server, in_groups
from tests.support.harness import REPOSITORY, assert_clean

COLUMNS = ("loads", "batched", "template", "tools", "reasoning", "schema", "second turn")
PAGE = FamilyPage(
    REPOSITORY / "docs" / "reference" / "chat-families.md",
    "make chat-families",
    {column: column for column in COLUMNS},
    tuple(FAMILIES),
)


def drive_some(names: Sequence[str]) -> list[DrivenChat]:
    """Drive families in one server, and print what was seen."""
    found: list[DrivenChat] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            server = family_server(Path(folder), names).start()
        except pytest.skip.Exception as error:
            sys.exit(str(error))
        try:
            for name in names:
                found.append(drive_chat(server, name))
                print(PAGE.row(found[-1]).strip(), *found[-1].faults, sep="\n  ", flush=True)
            assert_clean(server)
        finally:
            server.stop()
    return found


def main() -> None:
    """Drive the families, print what was seen, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*FAMILIES, []])
    names = parser.parse_args().names or list(FAMILIES)
    found: list[DrivenChat] = []
    for batch in in_groups(names):
        found += drive_some(batch)
        PAGE.write(found)
    if faults := sum(len(driven.faults) for driven in found):
        sys.exit(f"{faults} faults")


if __name__ == "__main__":
    main()
