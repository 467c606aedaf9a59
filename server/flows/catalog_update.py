"""Another checkpoint, or another catalog, in a running server: inspected, loaded and warmed before it is served.

Running calls keep the models they started with. If anything is wrong with the new catalog, nothing changes.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from pipelines.catalog.checkpoint_files import CheckpointError, describe
from pipelines.catalog.images import Catalog, CatalogError, ImageModel, load_catalog
from pipelines.protocol.chat import ChatEvent, ChatJob, ChatSpec, CountJob
from pipelines.protocol.images import CheckpointSpec
from server.backends.engine_host import EngineHost, WorkerDied
from server.backends.fleet import Fleet, Plan
from server.backends.upstream import UpstreamClient
from server.errors import BadRequest, Conflict, NotFound, StartError
from server.flows.catalog_edit import EditHistory, SettingChange, edit_catalog_file, write_text
from server.flows.checkpoints import CheckpointManager
from server.schemas.swaps import Stage
from server.state.served_catalog import ServedCatalog

log = structlog.stdlib.get_logger("darkroom.swap")

Tell = Callable[[Stage], None]  # how far a change is


def _say_nothing(_: Stage) -> None:
    return None


@dataclass(frozen=True, slots=True)
class CatalogDiff:
    """What a new catalog changed for callers: names of models, and a description of each new checkpoint, by name."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    loaded: dict[str, str]
    settings: tuple[SettingChange, ...] = ()  # that a swap changed with the checkpoint
    saved: bool = True  # False: the catalog's files still have the old value, which a restart serves again


class CatalogUpdater:
    """Replaces the served catalog, one change at a time. `model_configs` and `weights` are the catalog's folders."""

    def __init__(
        self,
        catalog: ServedCatalog,
        image_engine: Fleet,
        chat_engine: EngineHost[ChatJob | CountJob, ChatEvent],
        upstreams: UpstreamClient,
        checkpoints: CheckpointManager,
        history: EditHistory,
        *,
        model_configs: Path,
        weights: Path,
        preload: bool,
    ) -> None:
        self._catalog = catalog
        self._image_engine = image_engine
        self._chat_engine = chat_engine
        self._upstreams = upstreams
        self._checkpoints = checkpoints
        self._history = history
        self._model_configs = model_configs
        self._weights = weights
        self._preload = preload

    async def swap(
        self, model: str, checkpoint: str, tell: Tell = _say_nothing, *, keep_settings: bool = False
    ) -> CatalogDiff:
        """Give `model`, and the models that share its catalog file, another checkpoint. Raises ApiError.

        `checkpoint` is a path as catalog files have it: absolute, or relative to the weights folder. Steps, guidance,
        areas and conditioning become what fits it, unless `keep_settings`.
        """
        async with self._catalog.lock:
            tell("inspecting")
            before = self._catalog.current
            image_model = before.find(model)
            if image_model is None:
                known = f"Image models here: {', '.join(before.models)}. Chat models change with chat.toml."
                raise NotFound(f"There is no image model `{model}`. {known}", param="model", code="model_not_found")
            if image_model.checkpoint.upstream is not None:
                message = f"`{model}` is drawn by another server: edit {image_model.source.name} and reload."
                raise BadRequest(message, param="model", code="unsupported_value")
            settings = [] if keep_settings else await asyncio.to_thread(self._fit, image_model, checkpoint)
            after = await asyncio.to_thread(
                before.with_checkpoint,
                image_model.source,
                checkpoint,
                self._weights,
                {change.key: change.new for change in settings},
            )
            tell("loading")
            diff = await self._replace(before, after)
            tell("writing")
            edit = await asyncio.to_thread(edit_catalog_file, image_model.source, checkpoint, settings)
            if edit is not None:
                await asyncio.to_thread(self._history.record, edit)
            return replace(diff, settings=tuple(settings), saved=edit is not None)

    async def undo(self, tell: Tell = _say_nothing) -> CatalogDiff:
        """Take back the latest swap: its catalog file is as it was. Raises ApiError, and then nothing has changed."""
        edit = await asyncio.to_thread(self._history.last)
        source = Path(edit.source)
        await asyncio.to_thread(write_text, source, edit.before)
        try:
            diff = await self.reload(tell)
        except BaseException:
            await asyncio.to_thread(write_text, source, edit.after)
            raise
        await asyncio.to_thread(self._history.forget_last)
        return diff

    def _fit(self, model: ImageModel, checkpoint: str) -> list[SettingChange]:
        try:
            return self._checkpoints.fit(model, checkpoint)
        except NotFound:
            return []  # loading it will fail, and say so

    async def reload(self, tell: Tell = _say_nothing) -> CatalogDiff:
        """Read the catalog's files again. Raises ApiError."""
        async with self._catalog.lock:
            tell("loading")
            try:
                after = await asyncio.to_thread(load_catalog, self._model_configs, self._weights)
            except CatalogError as error:
                message = f"Nothing has changed. The catalog is refused:\n{error}"
                raise BadRequest(message, code="invalid_catalog") from error
            return await self._replace(self._catalog.current, after)

    async def _replace(self, before: Catalog, after: Catalog) -> CatalogDiff:
        """Load the new checkpoints, then serve the new catalog."""
        images = [spec for spec in after.checkpoints if spec not in before.checkpoints]
        chats = [spec for spec in after.chat.checkpoints if spec not in before.chat.checkpoints]
        if chats and not before.chat.checkpoints:
            raise BadRequest(
                "Nothing has changed. The server runs without local chat models; restart it to add the first one."
            )
        try:
            self._upstreams.load_keys(after.upstreams)
        except StartError as error:
            raise BadRequest(f"Nothing has changed. {error}", code="invalid_catalog") from error
        old = self._image_engine.current
        try:
            new = await asyncio.to_thread(self._image_engine.plan, after)
            descriptions = await self._prepare_and_describe(images, chats, new)
        except BaseException as error:
            self._retain(old, before.chat.checkpoints)
            raise _to_api_error(error) from error
        self._catalog.current = after
        self._retain(new, after.chat.checkpoints)
        loaded = descriptions | {spec.name: str(spec.path) for spec in chats}
        diff = _compare(before, after, loaded)
        log.info("catalog changed", added=diff.added, removed=diff.removed, changed=diff.changed, loaded=loaded)
        return diff

    async def _prepare_and_describe(
        self, images: Sequence[CheckpointSpec], chats: Sequence[ChatSpec], plan: Plan
    ) -> dict[str, str]:
        """Both at once, since hashing takes as long as loading. Each is awaited even when the other fails."""
        error, descriptions = await asyncio.gather(
            self._prepare(images, chats, plan), asyncio.to_thread(_describe, images), return_exceptions=True
        )
        if isinstance(error, BaseException):
            raise error
        if isinstance(descriptions, BaseException):
            raise descriptions
        return descriptions

    async def _prepare(self, images: Sequence[CheckpointSpec], chats: Sequence[ChatSpec], plan: Plan) -> None:
        """Load and warm them all, on every worker that needs them. Raises CheckpointError with every error, and
        WorkerDied."""
        errors: list[str] = []
        try:
            await self._image_engine.prepare(images, plan)
        except CheckpointError as error:
            errors.append(str(error))
        for spec in chats:
            try:
                await self._chat_engine.prepare(spec)
            except CheckpointError as error:
                errors.append(str(error))
        if errors:
            raise CheckpointError("; ".join(errors))

    def _retain(self, plan: Plan, chats: Sequence[ChatSpec]) -> None:
        """Let the engines evict checkpoints that this catalog does not name."""
        self._image_engine.retain(plan, preload=self._preload)
        self._chat_engine.retain(chats, chats if self._preload else ())


def _describe(specs: Sequence[CheckpointSpec]) -> dict[str, str]:
    return {spec.name: describe(spec) for spec in specs}


def _to_api_error(error: BaseException) -> BaseException:
    if isinstance(error, CheckpointError):
        return BadRequest(f"Nothing has changed. The new checkpoint can't be used: {error}", code="checkpoint_failed")
    if isinstance(error, WorkerDied):
        return Conflict(f"Nothing has changed: {error}. The server's log says why; try again.", 10)
    return error


def _compare(before: Catalog, after: Catalog, loaded: dict[str, str]) -> CatalogDiff:
    old, new = {**before.models, **before.chat.models}, {**after.models, **after.chat.models}
    return CatalogDiff(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(name for name in new if name in old and new[name] != old[name]),
        loaded=loaded,
    )
