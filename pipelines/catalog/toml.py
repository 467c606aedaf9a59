"""Strict TOML: a file becomes a typed value, or faults that name file, line and key, and say what would be right."""

import re
import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

Shape = TypeVar("Shape", bound=BaseModel)
Place = tuple[str | int, ...]  # keys and places in lists, from the top of the file

NAME = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""
NAMES = rf"\s*({NAME}(?:\s*\.\s*{NAME})*)\s*"
HEADER = re.compile(rf"\s*(\[\[?){NAMES}\]\]?\s*(#.*)?")
KEY = re.compile(rf"{NAMES}=")


class Strict(BaseModel):
    """A key that nobody knows is a mistake."""

    model_config = ConfigDict(extra="forbid", strict=True)


def read_toml(path: Path, shape: type[Shape], faults: list[str]) -> Shape | None:
    """The file's value; None when it has faults, which are added to `faults`, one line each."""
    try:
        return shape.model_validate(tomllib.loads(path.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        faults.append(f"{path}: can't be read: {error}")
    except tomllib.TOMLDecodeError as error:
        faults.append(f"{path}: not valid TOML: {error}")
    except ValidationError as error:
        faults.extend(fault_at(path, fault["loc"], _said(fault)) for fault in error.errors())
    return None


def fault_at(path: Path, place: Place, said: str) -> str:
    """What is wrong at a place of a file that could be read."""
    number = line_of(path.read_text(), place)
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    return f"{path}: {f'line {number}: ' if number else ''}{key}: {said}"


def line_of(text: str, place: Place) -> int | None:
    """The line of a key, or of the table or value that it is in or missing from: TOML's reader keeps no positions."""
    table: Place = ()
    lists: dict[Place, int] = {}  # of tables: the place of the latest one
    found: tuple[Place, int | None] = ((), None)
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.fullmatch(line):
            table = here = _table(_names(header[2]), lists, another=header[1] == "[[")
        elif key := KEY.match(line):
            here = (*table, *_names(key[1]))
        else:
            continue
        if len(here) > len(found[0]) and here == place[: len(here)]:
            found = here, number
    return found[1]


def _table(names: list[str], lists: dict[Place, int], *, another: bool) -> Place:
    """The place of a table that begins here, `another` of a list or not."""
    here: Place = ()
    for depth, name in enumerate(names, 1):
        here = (*here, name)
        if another and depth == len(names):
            lists[here] = lists.get(here, -1) + 1
        if here in lists:
            here = (*here, lists[here])
    return here


def _names(key: str) -> list[str]:
    return [name.strip("\"'") for name in re.findall(NAME, key)]


def _said(fault: ErrorDetails) -> str:
    match fault["type"]:
        case "missing":
            return "missing"
        case "extra_forbidden":
            return "unknown key"
        case "literal_error":
            return f"got {fault['input']!r}, expected {fault['ctx']['expected']}"
    return f"got {fault['input']!r}; {fault['msg'][0].lower()}{fault['msg'][1:]}"
