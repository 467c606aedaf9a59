"""The commands that the documentation and the comments of deploy/ tell people to run, as a shell parses them."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.data_folders import REPOSITORY
from tests.support.prose import FENCE, QUOTED

SHFMT = Path(sys.executable).with_name("shfmt")
COMMENT = re.compile(r"^#   +(\S.*)$", re.MULTILINE)  # a comment's commands are set in by three spaces
QUOTED_PROGRAMS = ("docker", "kubectl", "ray", "sbatch", "systemctl")  # prose names others, such as darkroom, in parts


@dataclass(frozen=True)
class Command:
    """A command, or settings alone if it has no words. `$NAME` and `$()` stand for what a shell would put there."""

    words: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]  # assigned before it, or exported
    line: int


def pages() -> list[Path]:
    """Every file whose text or comments have commands."""
    prose = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), REPOSITORY / "starters" / "README.md"]
    files = [REPOSITORY / "Dockerfile.cuda", *REPOSITORY.glob("deploy/**/*")]
    kept = [page for page in prose if page.name != "CHANGELOG.md"]
    return sorted(kept + [file for file in files if file.is_file() and file.suffix != ".json"])


def commands_of(page: Path) -> list[Command]:
    """Return the commands of a page in their order. Raises ValueError if a shell can't parse them."""
    text = page.read_text()
    if page.suffix == ".md":
        parts = [(block.start(2), block[2]) for block in FENCE.finditer(text) if block[1] == "sh"]
        bare = FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)
        for found in QUOTED.finditer(bare):
            words = found[1].replace("...", "").split()
            if len(words) > 2 and words[0] in QUOTED_PROGRAMS:
                parts.append((found.start(1), " ".join(words)))
    else:
        parts = [(found.start(), found[1]) for found in COMMENT.finditer(text)]
    script = ""  # every command at its own line of the page
    for start, part in sorted(parts):
        script += "\n" * max(text.count("\n", 0, start) - script.count("\n"), bool(script)) + part.rstrip("\n")
    return commands_in(script)


def commands_in(script: str) -> list[Command]:
    """Return the commands of a script in their order. Raises ValueError if a shell can't parse it."""
    command = [SHFMT, "--language-dialect", "bash", "--to-json"]
    parsed = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    if parsed.returncode != 0:
        raise ValueError(parsed.stderr)
    return list(_commands(json.loads(parsed.stdout)))


def _commands(node: Any) -> Iterator[Command]:
    """Yield what is inside a substitution before the command that uses it."""
    if isinstance(node, list):
        for each in node:
            yield from _commands(each)
    if not isinstance(node, dict):
        return
    for each in node.values():
        yield from _commands(each)
    if node.get("Type") in ("CallExpr", "DeclClause"):
        named = [each for each in [*node.get("Assigns", []), *node.get("Args", [])] if "Name" in each]
        settings = tuple((each["Name"]["Value"], _word(each.get("Value"))) for each in named)
        words = tuple(_word(each) for each in node.get("Args", []) if "Name" not in each)
        yield Command(words, settings, node["Pos"]["Line"])


def _word(word: Any) -> str:
    """Return a word without its quotes."""
    parts = word["Parts"] if word else []
    return "".join(_part(part) for part in parts)


def _part(part: dict[str, Any]) -> str:
    if part["Type"] == "DblQuoted":
        return "".join(_part(each) for each in part.get("Parts", []))
    if part["Type"] == "ParamExp":
        return f"${part['Param']['Value']}"
    if part["Type"] in ("CmdSubst", "ArithmExp"):
        return "$()"
    value: str = part.get("Value", "")
    return value if part["Type"] == "SglQuoted" else re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
