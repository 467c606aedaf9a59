"""Another catalog on this server, in two steps: its checkpoints are loaded and warmed up, then it is served.

Running calls keep the models they started with. A prepared catalog changes nothing until it is switched to.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from pipelines.catalog.checkpoint_files import CheckpointError, describe
from pipelines.catalog.digests import Digests
from pipelines.protocol.chat import ChatEvent, ChatJob, ChatSpec, CountJob
from pipelines.protocol.images import CheckpointSpec
from server.backends.engine_errors import WorkerDied
from server.backends.engine_host import EngineHost
from server.backends.upstream import UpstreamClient
from server.backends.worker_pool import Plan, WorkerPool
from server.catalog.images import Catalog
from server.errors import BadRequest, Conflict, StartError
from server.flows.catalog.edit import SettingChange
from server.schemas.swaps import Stage
from server.state.served_catalog import ServedCatalog

log = structlog.stdlib.get_logger("darkroom.swap")

Send = Callable[[Stage], None]  # how far a change is


def ignore_stage(_: Stage) -> None:
    """Ignore the stage of a change: for callers that show no progress."""


@dataclass(frozen=True, slots=True)
class CatalogDiff:
    """The changes of a new catalog for callers: names of models, and a description of each new checkpoint, by name."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    loaded: dict[str, str]
    settings: tuple[SettingChange, ...] = ()  # that a swap changed with the checkpoint
    saved: bool = True  # False: the catalog's files still have the old value, which a restart serves again


@dataclass(frozen=True, slots=True)
class Prepared:
    """A catalog whose new checkpoints are in memory beside those that are served."""

    catalog: Catalog
    plan: Plan
    loaded: dict[str, str]


class CatalogSwitch:
    """The catalog in use, and the engines that have its checkpoints. Callers must hold `ServedCatalog.lock`."""

    def __init__(
        self,
        catalog: ServedCatalog,
        image_engine: WorkerPool,
        chat_engine: EngineHost[ChatJob | CountJob, ChatEvent],
        upstreams: UpstreamClient,
        digests: Digests,
        *,
        preload: bool,
    ) -> None:
        self.catalog = catalog
        self._image_engine = image_engine
        self._chat_engine = chat_engine
        self._upstreams = upstreams
        self._digests = digests
        self._preload = preload

    async def replace(self, after: Catalog) -> CatalogDiff:
        """Prepare and serve another catalog, and return the changes. Raises ApiError, and then nothing has changed."""
        return self.switch(await self.prepare(after))

    async def prepare(self, after: Catalog) -> Prepared:
        """Load the new checkpoints. Raises ApiError, and then the loaded ones may be evicted again."""
        before = self.catalog.current
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
        try:
            plan = await asyncio.to_thread(self._image_engine.plan, after)
            descriptions = await self._prepare_and_describe(images, chats, plan)
        except BaseException as error:
            self.drop()
            raise _to_api_error(error) from error
        return Prepared(after, plan, descriptions | {spec.name: str(spec.path) for spec in chats})

    def switch(self, prepared: Prepared) -> CatalogDiff:
        """Serve the prepared catalog, and return how it differs from the one before."""
        before, after = self.catalog.current, prepared.catalog
        self.catalog.current = after
        self._unload_except(prepared.plan, after.chat.checkpoints)
        diff = _compare(before, after, prepared.loaded)
        log.info("catalog changed", added=diff.added, removed=diff.removed, changed=diff.changed, loaded=diff.loaded)
        return diff

    def drop(self) -> None:
        """Let the engines evict checkpoints that were prepared and are not served."""
        self._unload_except(self._image_engine.current, self.catalog.current.chat.checkpoints)

    async def _prepare_and_describe(
        self, images: Sequence[CheckpointSpec], chats: Sequence[ChatSpec], plan: Plan
    ) -> dict[str, str]:
        """Load and hash checkpoints at once, since hashing takes as long as loading. Each task is awaited even when the
        other fails."""
        describing = asyncio.to_thread(lambda: {spec.name: describe(spec, self._digests) for spec in images})
        error, descriptions = await asyncio.gather(
            self._prepare(images, chats, plan), describing, return_exceptions=True
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

    def _unload_except(self, plan: Plan, chats: Sequence[ChatSpec]) -> None:
        """Let the engines evict checkpoints that this catalog does not name."""
        self._image_engine.unload_except(plan, preload=self._preload)
        self._chat_engine.unload_except(chats, chats if self._preload else ())


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
