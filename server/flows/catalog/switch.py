"""Another catalog on this server, in two steps: its checkpoints are loaded and warmed up, then it is served.

Running calls keep the models they started with. A prepared catalog changes nothing until it is switched to.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.sums import Digests, describe, has_published_sums
from pipelines.protocol.chat import ChatEvent, ChatJob, ChatSpec, CountJob
from pipelines.protocol.images import CheckpointSpec
from server.backends.engine_host import EngineHost
from server.backends.upstream import UpstreamClient
from server.backends.worker_checkpoints import WorkerDied
from server.backends.worker_pool import Plan, WorkerPool
from server.catalog.images import Catalog
from server.catalog.specs import spec_labels
from server.errors import BadRequest, Conflict, StartError
from server.flows.catalog.edit import SettingChange
from server.schemas.admin import Stage
from server.state.served import ServedCatalog


class _Stopped(Exception):
    """Nobody waits for the sums any more."""


class Hashing:
    """Describes checkpoints, each of whose weights is read in a thread. It begins at once."""

    def __init__(self, specs: Sequence[CheckpointSpec], digests: Digests) -> None:
        self.specs = specs
        self._digests = digests
        self._stopped = threading.Event()
        self._task = asyncio.create_task(asyncio.to_thread(self._describe))

    def has_published_sums(self) -> bool:
        """Return whether somebody has published a sum of the weights: one that is another must not be served.
        Blocking."""
        try:
            return any(has_published_sums(spec) for spec in self.specs)
        except (CheckpointError, OSError):  # a file is gone since it was loaded
            return False

    async def descriptions(self) -> dict[CheckpointSpec, str]:
        """Wait for the descriptions. Raises CheckpointError for weights whose sum is not the published one."""
        return await asyncio.shield(self._task)

    def stop(self) -> None:
        """End the reading, within a block of a file."""
        self._stopped.set()
        self._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    def _describe(self) -> dict[CheckpointSpec, str]:
        try:
            return {spec: describe(spec, self._digests, self._check_stopped) for spec in self.specs}
        except OSError as error:
            raise CheckpointError(f"{error.filename}: {error.strerror}") from error

    def _check_stopped(self, _: int) -> None:
        if self._stopped.is_set():
            raise _Stopped


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
    keys: tuple[SettingChange, ...] = ()  # of the catalog file, at a swap
    saved: bool = True  # False: the catalog's files still have the old value, which a restart serves again

    @property
    def settings(self) -> tuple[SettingChange, ...]:
        """Return the keys that a swap changed with the checkpoint."""
        return tuple(each for each in self.keys if not each.stays)

    @property
    def kept(self) -> tuple[SettingChange, ...]:
        """Return the keys that stay as they are beside the new checkpoint."""
        return tuple(each for each in self.keys if each.stays)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A catalog whose new checkpoints are in memory beside those that are served, while the workers keep them: until
    the `generation` is another."""

    catalog: Catalog
    plan: Plan
    chats: Sequence[ChatSpec]
    hashing: Hashing
    generation: int

    async def compare_sums(self) -> None:
        """Wait for the sums of the new checkpoints. Raises BadRequest for one that is not the published one."""
        try:
            await self.hashing.descriptions()
        except CheckpointError as error:
            raise _to_api_error(error) from error
        finally:
            self.hashing.stop()

    async def loaded(self) -> dict[str, str]:
        """Wait for the descriptions of the new checkpoints, and return them by name."""
        found: dict[CheckpointSpec | ChatSpec, str] = {spec: str(spec.path) for spec in self.chats}
        try:
            found.update((spec, text) for spec, text in (await self.hashing.descriptions()).items())
        except CheckpointError as error:  # such as a file that is gone since it was loaded
            found.update(dict.fromkeys(self.hashing.specs, f"its sum can't be told: {error}"))
        finally:
            self.hashing.stop()
        loaded = {label: found[spec] for spec, label in spec_labels(found).items()}
        log.info("checkpoints are new", loaded=loaded)
        return loaded


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
        self._generation = 0

    async def prepare(self, after: Catalog) -> Prepared:
        """Load the new checkpoints, and begin to read their sums. Raises ApiError, and then the loaded ones may be
        evicted again."""
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
        hashing = Hashing(images, self._digests)
        try:
            plan = await asyncio.to_thread(self._image_engine.plan, after)
            await self._load(images, chats, plan)
        except BaseException as error:
            hashing.stop()
            self.drop()
            raise _to_api_error(error) from error
        return Prepared(after, plan, chats, hashing, self._generation)

    def keeps(self, prepared: Prepared) -> bool:
        """Return whether the workers still have what was prepared: no other change has been made or given up since."""
        return prepared.generation == self._generation

    def switch(self, prepared: Prepared) -> CatalogDiff:
        """Serve the prepared catalog, and return how it differs from the one before; `loaded` is left to the caller."""
        before, after = self.catalog.current, prepared.catalog
        self.catalog.current = after
        self._unload_except(prepared.plan, after.chat.checkpoints)
        diff = _compare(before, after)
        log.info("catalog changed", added=diff.added, removed=diff.removed, changed=diff.changed)
        return diff

    def drop(self) -> None:
        """Let the engines evict checkpoints that were prepared and are not served."""
        self._unload_except(self._image_engine.current, self.catalog.current.chat.checkpoints)

    async def _load(self, images: Sequence[CheckpointSpec], chats: Sequence[ChatSpec], plan: Plan) -> None:
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
        self._generation += 1
        self._image_engine.unload_except(plan, preload=self._preload)
        self._chat_engine.unload_except(chats, chats if self._preload else ())


def _to_api_error(error: BaseException) -> BaseException:
    if isinstance(error, CheckpointError):
        return BadRequest(f"Nothing has changed. The new checkpoint can't be used: {error}", code="checkpoint_failed")
    if isinstance(error, WorkerDied):
        return Conflict(f"Nothing has changed: {error}. The server's log says why; try again.", 10)
    return error


def _compare(before: Catalog, after: Catalog) -> CatalogDiff:
    old, new = {**before.models, **before.chat.models}, {**after.models, **after.chat.models}
    return CatalogDiff(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(name for name in new if name in old and new[name] != old[name]),
        loaded={},
    )
