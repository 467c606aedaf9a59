"""Edits of a catalog file by a swap: only the changed values are replaced, and each edit can be undone."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, InlineTable, Item, Table

from pipelines.checkpoints.inspection.suggestion import Setting
from pipelines.protocol.images import Scalar
from server.accounts.catalogs import Edit
from server.catalog.images import CatalogError, scaled_qualities
from server.errors import BadRequest

MAX_EDITS = 50  # that can be undone
ENTERED = ("sampling", "runtime")  # tables whose keys are named one by one


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A key of a catalog file, before and after a change, and why. None: the file has no such key. `comment` is what
    its line's becomes, without a mark; None leaves it."""

    key: str
    old: Setting
    new: Setting
    why: str = ""
    comment: str | None = None

    @property
    def stays(self) -> bool:
        """Return whether the key has its value after the change, too."""
        return self.old == self.new


@dataclass(frozen=True, slots=True)
class KeyInFile:
    """A key of a catalog file: its value, for people, and the comment on its line, with its mark."""

    shown: str
    comment: str


def read_keys(text: str) -> dict[str, KeyInFile]:
    """Return the keys of a catalog file in its order; those of [runtime] and [sampling] with the table's name before
    them. Raises CatalogError."""
    found: dict[str, KeyInFile] = {}
    for key, value in _parse(text).items():
        inside = value.items() if key in ENTERED and isinstance(value, Mapping) else [("", value)]
        found |= {f"{key}.{name}".rstrip("."): KeyInFile(_shown(each), _comment(each)) for name, each in inside}
    return found


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        named = value.get("checkpoint") or value.get("path") or value.get("name")
        return str(named) if named else ", ".join(f"{key} = {_shown(each)}" for key, each in value.items())
    return ", ".join(map(_shown, value)) if isinstance(value, list) else str(value)


def _comment(value: object) -> str:
    return value.trivia.comment if isinstance(value, Item) and not isinstance(value, Table | AoT) else ""


def edited_text(text: str, checkpoint: str, settings: Sequence[SettingChange], stale: Collection[str] = ()) -> str:
    """Return a catalog file's text with another checkpoint, these settings, and without the `stale` comments. Raises
    CatalogError."""
    document = _parse(text)
    document["checkpoint"] = checkpoint
    if _comment(document["checkpoint"]) in stale:
        _write_comment(document["checkpoint"], "")
    for change in settings:
        if not change.stays:
            _set(document, change)
        if change.comment is not None and change.new is not None:
            table, _, key = change.key.rpartition(".")
            owner = document[table] if table else document
            if not isinstance(owner, InlineTable):
                _write_comment(owner.get(key), change.comment)
    lines = tomlkit.dumps(document).splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() not in stale)


def _write_comment(value: object, comment: str) -> None:
    """Make the comment on a value's line this one. A value without a line of its own, such as a table, has none."""
    if isinstance(value, Item) and not isinstance(value, Table | AoT):
        value.trivia.comment_ws = value.trivia.comment = ""
        if comment:
            value.comment(comment)
            value.trivia.comment_ws = "  "


def _parse(text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise CatalogError(str(error)) from error


def _set(document: tomlkit.TOMLDocument, change: SettingChange) -> None:
    table, _, key = change.key.rpartition(".")
    if key == "steps" and "quality" in document:
        quality = document["quality"]
        names = [name for name in quality if isinstance(quality[name], Mapping)]
        before = {name: int(quality[name]["steps"]) for name in names}
        scaled = scaled_qualities(before, before[quality["default"]], int(cast(float, change.new or 1))) or {}
        for name in names:
            quality[name]["steps"] = scaled[name]
        return
    if table and table not in document:
        document[table] = tomlkit.table()
    owner = document[table] if table else document
    if change.new is None:
        owner.pop(key, None)
    else:
        owner[key] = _inline(change.new) if isinstance(change.new, Mapping) else change.new


def _inline(table: Mapping[str, Scalar]) -> InlineTable:
    inline = tomlkit.inline_table()
    inline.update(table)
    return inline


def write_text(file: Path, text: str) -> None:
    """Write all of the text or nothing. Raises OSError."""
    part = file.with_suffix(".part")
    part.write_text(text)
    if file.exists():
        shutil.copymode(file, part)
    part.replace(file)


def last_edit(edits: Sequence[Edit], files: Mapping[str, str]) -> Edit:
    """Return the edit that `undo` takes back.

    Raises BadRequest if there is none, or if its file has changed since.
    """
    if not edits:
        raise BadRequest("There is no swap to undo.")
    if files.get(edits[-1].source) != edits[-1].after:
        raise BadRequest(f"{edits[-1].source} has changed since the swap: edit it by hand and reload.")
    return edits[-1]
