"""Another checkpoint, or another catalog, in a running server: inspected, loaded and warmed before it takes over.

Calls that are under way end on what they began with. Whatever is wrong with the new one, nothing has changed.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
import tomlkit
from tomlkit.exceptions import TOMLKitError

from pipelines.catalog.checkpoint_files import CheckpointError, describe
from pipelines.catalog.images import Catalog, CatalogError, load_catalog
from pipelines.protocol.chat import ChatSpec
from pipelines.protocol.images import CheckpointSpec
from pipelines.protocol.messages import CheckpointState
from server.backends.engine_host import WorkerDied
from server.errors import BadRequest, Conflict, NotFound, StartError
from server.services import Services

log = structlog.stdlib.get_logger("darkroom.swap")


@dataclass(frozen=True, slots=True)
class Change:
    """What a new catalog is to the callers: names of models, and what the new checkpoints are, by name."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    loaded: dict[str, str]
    saved: bool = True  # whether the catalog's files say the same, so that it outlives the server


async def swap_checkpoint(services: Services, name: str, checkpoint: str) -> Change:
    """Give the models of a catalog file another checkpoint. Raises ApiError.

    `name` is one of the models, and `checkpoint` a path as catalog files have it: absolute, or below the weights.
    """
    async with services.catalog_lock:
        model = services.catalog.find(name)
        if model is None:
            known = f"Image models here: {', '.join(services.catalog.models)}. Chat models change with chat.toml."
            raise NotFound(f"There is no image model `{name}`. {known}", param="model", code="model_not_found")
        catalog = await asyncio.to_thread(
            services.catalog.with_checkpoint, model.source, checkpoint, services.settings.weights
        )
        change = await _take_over(services, catalog)
        saved = await asyncio.to_thread(_save, model.source, checkpoint)
        return replace(change, saved=saved)


async def reload_catalog(services: Services) -> Change:
    """Take the catalog's files as they are now. Raises ApiError."""
    settings = services.settings
    async with services.catalog_lock:
        try:
            catalog = await asyncio.to_thread(load_catalog, settings.model_configs, settings.weights)
        except CatalogError as error:
            raise BadRequest(
                f"Nothing has changed. The catalog is refused:\n{error}", code="invalid_catalog"
            ) from error
        return await _take_over(services, catalog)


async def _take_over(services: Services, catalog: Catalog) -> Change:
    """Prepare what is new in the catalog, then use it."""
    before, preload = services.catalog, services.settings.preload
    images = [spec for spec in catalog.checkpoints if spec not in before.checkpoints]
    chats = [spec for spec in catalog.chat.checkpoints if spec not in before.chat.checkpoints]
    if chats and not before.chat.checkpoints:
        raise BadRequest("Nothing has changed. The first chat checkpoint of its own needs a restart of the server.")
    try:
        services.upstreams.take(catalog.chat.upstreams)
    except StartError as error:
        raise BadRequest(f"Nothing has changed. {error}", code="invalid_catalog") from error
    try:
        states, described = await _prepare_and_describe(services, images, chats)
    except BaseException as error:
        _keep(services, before, preload=preload)
        raise _refusal(error) from error
    services.catalog = catalog
    _keep(services, catalog, preload=preload)
    loaded = {state.spec.name: described.get(state.spec.name, state.detail) for state in states}
    change = _compare(before, catalog, loaded)
    log.info("catalog changed", added=change.added, removed=change.removed, changed=change.changed, loaded=loaded)
    return change


def _describe(specs: Sequence[CheckpointSpec]) -> dict[str, str]:
    return {spec.name: describe(spec) for spec in specs}


async def _prepare_and_describe(
    services: Services, images: Sequence[CheckpointSpec], chats: Sequence[ChatSpec]
) -> tuple[list[CheckpointState], dict[str, str]]:
    """Both at once, since hashing takes as long as loading. Neither is left behind when the other fails."""
    states, described = await asyncio.gather(
        _prepare(services, images, chats), asyncio.to_thread(_describe, images), return_exceptions=True
    )
    if isinstance(states, BaseException):
        raise states
    if isinstance(described, BaseException):
        raise described
    return states, described


async def _prepare(
    services: Services, images: Sequence[CheckpointSpec], chats: Sequence[ChatSpec]
) -> list[CheckpointState]:
    """Load and warm them all. Raises CheckpointError, WorkerDied."""
    states = await services.images.prepare(images) if images else []
    if chats:
        states += await services.chat.prepare(chats)
    if faults := [state.detail for state in states if state.state == "failed"]:
        raise CheckpointError("; ".join(faults))
    return states


def _keep(services: Services, catalog: Catalog, *, preload: bool) -> None:
    services.images.keep(catalog.checkpoints, preload=preload)
    services.chat.keep(catalog.chat.checkpoints, preload=preload)


def _refusal(error: BaseException) -> BaseException:
    """What the operator is told."""
    if isinstance(error, CheckpointError):
        return BadRequest(f"Nothing has changed. The new checkpoint can't be used: {error}", code="checkpoint_failed")
    if isinstance(error, WorkerDied):
        return Conflict(f"Nothing has changed: {error}. The server's log says why; try again.", 10)
    return error


def _compare(before: Catalog, after: Catalog, loaded: dict[str, str]) -> Change:
    old, new = {**before.models, **before.chat.models}, {**after.models, **after.chat.models}
    return Change(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(name for name in new if name in old and new[name] != old[name]),
        loaded=loaded,
    )


def _save(source: Path, checkpoint: str) -> bool:
    """Write the swap into the catalog file, all else as it is there. False where that can't be done: somebody may have
    broken the file since it was loaded."""
    source = source.resolve()  # a link stays one
    try:
        document = tomlkit.parse(source.read_text())
        document["checkpoint"] = checkpoint
        part = source.with_suffix(".part")
        part.write_text(tomlkit.dumps(document))
        part.replace(source)
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        log.warning(
            "the catalog can't be written to: the swap ends with the server", file=str(source), error=str(error)
        )
        return False
    return True
