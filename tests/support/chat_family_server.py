"""A server with some families of tiny chat checkpoints."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.chat_families import make_chat_family
from tests.support.harness import REPOSITORY, Server

TOGETHER = 6  # checkpoints in one server


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
    return Server(folder / "home", weights, configs, program="tests.support.scripted_chat_server")


def in_groups(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the names, as many at a time as one server has."""
    for first in range(0, len(names), TOGETHER):
        yield names[first : first + TOGETHER]
