"""Strict TOML: a file becomes a typed value, or errors that name the file, the line, the key and the expected value."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, AnyHttpUrl, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from server.catalog.toml_messages import message_of, syntax_message

Shape = TypeVar("Shape", bound=BaseModel)
KeyPath = tuple[str | int, ...]  # keys and list indices, from the top of the file

NAME = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""
NAMES = rf"\s*({NAME}(?:\s*\.\s*{NAME})*)\s*"
HEADER = re.compile(rf"\s*(\[\[?){NAMES}\]\]?\s*(#.*)?")
KEY = re.compile(rf"{NAMES}=")

HTTP_URL: TypeAdapter[AnyHttpUrl] = TypeAdapter(AnyHttpUrl)


def _check_url(text: str) -> str:
    """Return the same text. Raises PydanticCustomError, as for a port over 65535."""
    try:
        HTTP_URL.validate_python(text)
    except ValidationError as error:
        raise PydanticCustomError("server_url", "{reason}", {"reason": error.errors()[0]["msg"]}) from error
    return text


ServerUrl = Annotated[
    str,
    Field(pattern=r"^https?://[^/\s]+(/[^\s?#]*)?$", description="an address, such as 'http://10.0.0.5:8000/v1'"),
    AfterValidator(_check_url),
]


class Strict(BaseModel):
    """A table of a TOML file in which unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


def read_toml(path: Path, shape: type[Shape], errors: list[str]) -> Shape | None:
    """Read a file's value; None if it has errors, which are appended to `errors`, one line each."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a mark before the first character
        return shape.model_validate(tomllib.loads(text))
    except (OSError, UnicodeDecodeError) as error:
        errors.append(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}")
    except tomllib.TOMLDecodeError as error:
        errors.append(f"{path}: {syntax_message(error, text)}")
    except ValidationError as error:
        errors.extend(error_at(path, each["loc"], message_of(each, shape)) for each in error.errors())
    return None


def error_at(path: Path, key_path: KeyPath, message: str) -> str:
    """Return the error message of a key of a readable file, with its line."""
    number = line_of(path.read_text(), key_path)
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key_path).lstrip(".")
    return f"{path}: {f'line {number}: ' if number else ''}{f'{key}: ' if key else ''}{message}"


def line_of(text: str, key_path: KeyPath) -> int | None:
    """Return the line of a key, or of the innermost table or value that contains or lacks it: tomllib gives no
    positions."""
    table: KeyPath = ()
    lists: dict[KeyPath, int] = {}  # arrays of tables: the index of the latest table
    best: tuple[KeyPath, int | None] = ((), None)
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.fullmatch(line):
            table = current = _table_path(_names(header[2]), lists, in_array=header[1] == "[[")
        elif key := KEY.match(line):
            current = (*table, *_names(key[1]))
        else:
            continue
        if len(current) > len(best[0]) and current == key_path[: len(current)]:
            best = current, number
    return best[1]


def _table_path(names: list[str], lists: dict[KeyPath, int], *, in_array: bool) -> KeyPath:
    """Return the path of a table from its header. `in_array` for a [[header]], which `lists` counts."""
    path: KeyPath = ()
    for depth, name in enumerate(names, 1):
        path = (*path, name)
        if in_array and depth == len(names):
            lists[path] = lists.get(path, -1) + 1
        if path in lists:
            path = (*path, lists[path])
    return path


def _names(key: str) -> list[str]:
    return [name.strip("\"'") for name in re.findall(NAME, key)]
