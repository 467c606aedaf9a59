"""`make chat-families`: every family of tiny chat checkpoints through a real server, over HTTP. Writes the table of
docs/reference/chat-families.md from what was seen, and ends with an error if anything was not as it must be.

    python -m benchmarks.chat_families [NAME ...]

With names, only those are driven, and only their rows are written.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded; the server has the other core

from benchmarks.family_page import FamilyPage
from tests.support.chat_families import FAMILIES, make_chat_family
from tests.support.chat_family_drive import DrivenChat, drive_chat
from tests.support.harness import REPOSITORY, Server, assert_clean

COLUMNS = ("loads", "batched", "template", "tools", "reasoning", "schema", "second turn")
PAGE = FamilyPage(
    REPOSITORY / "docs" / "reference" / "chat-families.md",
    "make chat-families",
    {column: column for column in COLUMNS},
    tuple(FAMILIES),
)


def family_server(folder: Path, names: Sequence[str]) -> Server:
    """Make the checkpoints, and a server of them that is not yet started."""
    weights, configs = folder / "weights", folder / "model_configs"
    shutil.copytree(REPOSITORY / "model_configs", configs)
    for starter in ("starter-alpha", "starter-beta"):  # never loaded
        (weights / starter).mkdir(parents=True)
    entries = []
    for name in names:
        make_chat_family(name, weights / name)
        entries.append(f"[[models]]\nname = {json.dumps(name)}\ncheckpoint = {json.dumps(name)}\ntools = true\n")
    (configs / "chat.toml").write_text("\n".join(entries))
    settings = {"preload": "false"}
    return Server(folder / "home", weights, configs, settings, program="tests.support.scripted_chat_server")


def main() -> None:
    """Drive the families, print what was seen, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*FAMILIES, []])
    names = parser.parse_args().names or list(FAMILIES)
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
    PAGE.write(found)
    if faults := sum(len(driven.faults) for driven in found):
        sys.exit(f"{faults} faults")


if __name__ == "__main__":
    main()
