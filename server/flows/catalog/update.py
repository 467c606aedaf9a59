"""An operator's changes of the catalog of a running server, as functions from its files to other files.

Who records the outcome is a `CatalogRecord`: the folder of the only server (`folder`), or the database of several
(`cluster`). If anything is wrong with the new catalog, nothing changes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from server.accounts.catalogs import Edit
from server.catalog.images import Catalog, CatalogError, ImageModel
from server.errors import BadRequest, Conflict, ModelNotFound, NotFound
from server.flows.catalog.edit import MAX_EDITS, SettingChange, edited_text, last_edit, read_keys
from server.flows.catalog.files import read_files
from server.flows.catalog.fit import kept_keys, refused_keys, stale_comments, swapped_keys
from server.flows.catalog.switch import CatalogDiff, Send, ignore_stage
from server.flows.operators.checkpoints import CheckpointManager
from server.state.served import ServedCatalog

WITH_FILES = {"base", "config"}  # what goes with a checkpoint in one file
Files = Mapping[str, str]  # the text of each catalog file, by its name


@dataclass(frozen=True, slots=True)
class Change:
    """The files of another catalog, the swaps that can be undone then, and what became of a file's keys at a swap."""

    files: Files
    edits: tuple[Edit, ...]
    keys: tuple[SettingChange, ...] = ()


MakeChange = Callable[[Files, Sequence[Edit]], Change]  # from those of the present catalog


class CatalogRecord(Protocol):
    """The interface of the record of the served catalog: one change at a time is prepared, served and recorded."""

    async def change(self, make: MakeChange, send: Send) -> CatalogDiff:
        """Serve the catalog that `make` returns, which runs in a thread. Raises ApiError, and then nothing has
        changed."""
        ...


class CatalogUpdater:
    """Replaces the served catalog, one change at a time. `model_configs` is the folder of its files."""

    def __init__(
        self, catalog: ServedCatalog, record: CatalogRecord, checkpoints: CheckpointManager, model_configs: Path
    ) -> None:
        self._catalog = catalog
        self._record = record
        self._checkpoints = checkpoints
        self._model_configs = model_configs

    async def swap(
        self, model: str, checkpoint: str, send: Send = ignore_stage, *, keep_settings: bool = False
    ) -> CatalogDiff:
        """Give `model`, and the models that share its catalog file, another checkpoint, and return the changes. Raises
        ApiError. `checkpoint` is a path as catalog files have it: absolute, or relative to the weights folder. The
        file's keys become what fits it, unless `keep_settings`. A key with which it does not load is left out."""
        refused: dict[str, str] = {}
        present: set[str] = set()

        def swapped(files: Files, edits: Sequence[Edit]) -> Change:
            image_model = find_local(self._catalog.current, model)
            source = image_model.source.name
            if source not in files:
                raise BadRequest(f"Nothing has changed: {source} is no longer in the catalog. Reload first.")
            keys = read_keys(files[source])
            present.update(keys)
            outcomes, stale = [*kept_keys(keys, "all settings are kept")], set[str]()
            if not keep_settings:
                compared = None
                with suppress(NotFound):  # loading it will fail, and say so
                    compared = self._checkpoints.compare(image_model, checkpoint)
                if compared is None and not keys.keys() & WITH_FILES:
                    self._refuse_file_alone(checkpoint, source)
                outcomes, stale = swapped_keys(keys, compared, refused), stale_comments(keys, compared)
            edit = Edit(source, files[source], edited_text(files[source], checkpoint, outcomes, stale))
            return Change({**files, source: edit.after}, (*edits, edit)[-MAX_EDITS:], tuple(outcomes))

        while True:
            try:
                return await self._record.change(swapped, send)
            except BadRequest as error:
                new = {key: why for key, why in refused_keys(error.message, present).items() if key not in refused}
                if keep_settings or not new:
                    raise
                refused |= new

    def _refuse_file_alone(self, checkpoint: str, source: str) -> None:
        """Raise BadRequest for a checkpoint in one file that needs a folder which only a person can name."""
        if (advice := self._checkpoints.folder_advice(checkpoint)) is not None:
            raise BadRequest(f"Nothing has changed. {advice} into {source}, and reload.", param="checkpoint")

    async def undo(self, send: Send = ignore_stage) -> CatalogDiff:
        """Undo the latest swap: its catalog file is as it was. Returns the changes. Raises ApiError."""

        first: Edit | None = None

        def undone(files: Files, edits: Sequence[Edit]) -> Change:
            nonlocal first
            last = last_edit(edits, files)
            if (first := first or last) != last:
                message = "Nothing has changed: another swap was made meanwhile. Undo again to take that one back."
                raise Conflict(message, 2)
            return Change({**files, last.source: last.before}, tuple(edits[:-1]))

        return await self._record.change(undone, send)

    async def reload(self, send: Send = ignore_stage) -> CatalogDiff:
        """Read the catalog's files of this server again, and return the changes. Raises ApiError."""
        return await self._record.change(lambda _, edits: Change(read_files(self._model_configs), tuple(edits)), send)


def find_local(catalog: Catalog, model: str) -> ImageModel:
    """Find a model that is drawn on this server. Raises ApiError."""
    image_model = catalog.find(model)
    if image_model is None:
        known = f"Image models here: {', '.join(catalog.models)}. Chat models change with chat.toml."
        raise ModelNotFound(model, f"There is no image model `{model}`. {known}")
    if image_model.checkpoint.upstream is not None:
        message = f"`{model}` is drawn by another server: edit {image_model.source.name} and reload."
        raise BadRequest(message, param="model", code="unsupported_value")
    return image_model


def to_bad_request(error: CatalogError) -> BadRequest:
    """Turn the error of an invalid catalog into the error that the caller gets."""
    return BadRequest(f"Nothing has changed. The catalog is refused:\n{error}", code="invalid_catalog")
