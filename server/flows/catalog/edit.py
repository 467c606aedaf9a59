"""Edits of a catalog file by a swap: only the changed values are written, and each edit can be undone."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import structlog
import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from pipelines.catalog.suggestion import Setting
from pipelines.protocol.images import Scalar
from server.accounts.catalogs import Edit
from server.catalog.images import scaled_qualities
from server.errors import BadRequest

log = structlog.stdlib.get_logger("darkroom.swap")

MAX_EDITS = 50  # that can be undone


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A key of a catalog file, before and after a change. None: the file has no such key."""

    key: str
    old: Setting
    new: Setting


def edit_catalog_file(source: Path, checkpoint: str, settings: Sequence[SettingChange]) -> Edit | None:
    """Write the checkpoint and the settings into the catalog file, and leave the rest of it unchanged. None if that
    fails: the file may be read-only, or may have become invalid since it was loaded."""
    source = source.resolve()  # a symbolic link stays one
    try:
        before = source.read_text()
        after = edited_text(before, checkpoint, settings)
        write_text(source, after)
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        message = "the catalog file can't be written: the swap is lost at the next restart"
        log.warning(message, file=str(source), error=str(error))
        return None
    return Edit(str(source), before, after)


def edited_text(text: str, checkpoint: str, settings: Sequence[SettingChange]) -> str:
    """Return a catalog file's text with another checkpoint and these settings. Raises TOMLKitError."""
    document = tomlkit.parse(text)
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


def last_edit(edits: Sequence[Edit], read: Callable[[str], str | None]) -> Edit:
    """Return the edit that `undo` takes back. `read` returns the present text of its file.

    Raises BadRequest if there is none, or if its file has changed since.
    """
    if not edits:
        raise BadRequest("There is no swap to undo.")
    if read(edits[-1].source) != edits[-1].after:
        raise BadRequest(f"{edits[-1].source} has changed since the swap: edit it by hand and reload.")
    return edits[-1]


def _read_source(source: str) -> str:
    try:
        return Path(source).read_text()
    except OSError as error:
        raise BadRequest(f"{source} can't be read: {error.strerror}.") from error


class EditHistory:
    """The latest edits, in a file of the server's home: they can be undone after a restart too."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def record(self, edit: Edit) -> None:
        """Add an edit, and drop the oldest beyond MAX_EDITS. Raises OSError."""
        write_text(self._file, json.dumps([*map(asdict, self._read()), asdict(edit)][-MAX_EDITS:]))

    def last(self) -> Edit:
        """Return the edit that `undo` takes back. Raises BadRequest as `last_edit`, and if its file can't be read."""
        return last_edit(self._read(), _read_source)

    def delete_last(self) -> None:
        """Delete the latest edit. Raises OSError."""
        write_text(self._file, json.dumps([asdict(edit) for edit in self._read()[:-1]]))

    def _read(self) -> list[Edit]:
        try:
            return [Edit(**edit) for edit in json.loads(self._file.read_text())]
        except (FileNotFoundError, ValueError, TypeError):
            return []
