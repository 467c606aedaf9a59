"""Another checkpoint, or another catalog, in a running server: inspected, loaded and warmed before it is served.

If anything is wrong with the new catalog, nothing changes. This is the way of a server that is the only one, whose
catalog is its files; `cluster` is that of several.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from server.catalog.images import Catalog, CatalogError, ImageModel, load_catalog
from server.errors import BadRequest, NotFound
from server.flows.catalog.edit import EditHistory, SettingChange, edit_catalog_file, write_text
from server.flows.catalog.switch import CatalogDiff, CatalogSwitch, Send, say_nothing
from server.flows.checkpoints import CheckpointManager
from server.state.served_catalog import ServedCatalog


class CatalogUpdater(Protocol):
    """Replaces the served catalog, one change at a time."""

    async def swap(
        self, model: str, checkpoint: str, send: Send = say_nothing, *, keep_settings: bool = False
    ) -> CatalogDiff:
        """Give `model`, and the models that share its catalog file, another checkpoint. Raises ApiError.

        `checkpoint` is a path as catalog files have it: absolute, or relative to the weights folder. Steps, guidance,
        areas and conditioning become what fits it, unless `keep_settings`.
        """
        ...

    async def undo(self, send: Send = say_nothing) -> CatalogDiff:
        """Take back the latest swap: its catalog file is as it was. Raises ApiError, and then nothing has changed."""
        ...

    async def reload(self, send: Send = say_nothing) -> CatalogDiff:
        """Read the catalog's files again. Raises ApiError."""
        ...


class FileCatalogUpdater(CatalogUpdater):
    """The catalog of one server. `model_configs` and `weights` are its folders."""

    def __init__(
        self,
        catalog: ServedCatalog,
        switch: CatalogSwitch,
        checkpoints: CheckpointManager,
        history: EditHistory,
        *,
        model_configs: Path,
        weights: Path,
    ) -> None:
        self._catalog = catalog
        self._switch = switch
        self._checkpoints = checkpoints
        self._history = history
        self._model_configs = model_configs
        self._weights = weights

    async def swap(
        self, model: str, checkpoint: str, send: Send = say_nothing, *, keep_settings: bool = False
    ) -> CatalogDiff:
        """Serve a model with another checkpoint, then write that to its catalog file. Raises ApiError."""
        async with self._catalog.lock:
            send("inspecting")
            before = self._catalog.current
            image_model = find_local(before, model)
            settings = await asyncio.to_thread(
                fitting, self._checkpoints, image_model, checkpoint, keep_settings=keep_settings
            )
            after = await asyncio.to_thread(
                before.with_checkpoint,
                image_model.source,
                checkpoint,
                self._weights,
                {change.key: change.new for change in settings},
            )
            send("loading")
            diff = await self._switch.replace(after)
            send("writing")
            edit = await asyncio.to_thread(edit_catalog_file, image_model.source, checkpoint, settings)
            if edit is not None:
                await asyncio.to_thread(self._history.record, edit)
            return replace(diff, settings=tuple(settings), saved=edit is not None)

    async def undo(self, send: Send = say_nothing) -> CatalogDiff:
        """Put the catalog file back as it was before the latest swap, and serve it. Raises ApiError, and then nothing
        has changed."""
        edit = await asyncio.to_thread(self._history.last)
        source = Path(edit.source)
        await asyncio.to_thread(write_text, source, edit.before)
        try:
            diff = await self.reload(send)
        except BaseException:
            await asyncio.to_thread(write_text, source, edit.after)
            raise
        await asyncio.to_thread(self._history.delete_last)
        return diff

    async def reload(self, send: Send = say_nothing) -> CatalogDiff:
        """Serve the catalog of the files as they are now. Raises ApiError."""
        async with self._catalog.lock:
            send("loading")
            try:
                after = await asyncio.to_thread(load_catalog, self._model_configs, self._weights)
            except CatalogError as error:
                raise refused(error) from error
            return await self._switch.replace(after)


def find_local(catalog: Catalog, model: str) -> ImageModel:
    """Find a model that is drawn on this server. Raises ApiError."""
    image_model = catalog.find(model)
    if image_model is None:
        known = f"Image models here: {', '.join(catalog.models)}. Chat models change with chat.toml."
        raise NotFound(f"There is no image model `{model}`. {known}", param="model", code="model_not_found")
    if image_model.checkpoint.upstream is not None:
        message = f"`{model}` is drawn by another server: edit {image_model.source.name} and reload."
        raise BadRequest(message, param="model", code="unsupported_value")
    return image_model


def fitting(
    checkpoints: CheckpointManager, model: ImageModel, checkpoint: str, *, keep_settings: bool
) -> list[SettingChange]:
    """Return the settings of the model that change with the checkpoint; none with `keep_settings`. Blocking. Raises
    ApiError."""
    try:
        return [] if keep_settings else checkpoints.fit(model, checkpoint)
    except NotFound:
        return []  # loading it will fail, and say so


def refused(error: CatalogError) -> BadRequest:
    """Turn the error of an invalid catalog into the error that the caller gets."""
    return BadRequest(f"Nothing has changed. The catalog is refused:\n{error}", code="invalid_catalog")
