"""Edits of a catalog file by a swap: only the changed values are replaced, and each edit can be undone."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from pipelines.catalog.suggestion import Setting
from pipelines.protocol.images import Scalar
from server.accounts.catalogs import Edit
from server.catalog.images import CatalogError, scaled_qualities
from server.errors import BadRequest

MAX_EDITS = 50  # that can be undone


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A key of a catalog file, before and after a change. None: the file has no such key."""

    key: str
    old: Setting
    new: Setting


def edited_text(text: str, checkpoint: str, settings: Sequence[SettingChange]) -> str:
    """Return a catalog file's text with another checkpoint and these settings. Raises CatalogError."""
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise CatalogError(str(error)) from error
    document["checkpoint"] = checkpoint
    for change in settings:
        _set(document, change)
    return tomlkit.dumps(document)


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
