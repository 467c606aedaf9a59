"""Strict TOML: a file becomes a typed value, or faults that name file, line and key, and say what would be right."""

import re
import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

Shape = TypeVar("Shape", bound=BaseModel)


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
        faults.extend(f"{path}: {_line(path, fault)}{_describe(fault)}" for fault in error.errors())
    return None


def _describe(fault: ErrorDetails) -> str:
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).lstrip(".")
    match fault["type"]:
        case "missing":
            return f"{key}: missing"
        case "extra_forbidden":
            return f"{key}: unknown key"
        case "literal_error":
            return f"{key}: got {fault['input']!r}, expected {fault['ctx']['expected']}"
    return f"{key}: got {fault['input']!r}; {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _line(path: Path, fault: ErrorDetails) -> str:
    """'line 12: ' where the offending key stands alone in the file; TOML's reader keeps no positions."""
    key = next((part for part in reversed(fault["loc"]) if isinstance(part, str)), "")
    text = repr(fault["input"])[1:-1] if isinstance(fault["input"], str) else ""
    hits = [
        number
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.match(rf'\s*"?{re.escape(key)}"?\s*=', line) and text in line
    ]
    return f"line {hits[0]}: " if len(hits) == 1 else ""
