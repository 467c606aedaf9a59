"""A change of the catalog of all gateways: all that run prepare it, then all serve it, or none."""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from server.accounts.catalogs import CatalogContent, CatalogStore, CatalogVersion, Edit, TurnLost
from server.backends.gateway_link import GatewayGone
from server.catalog.images import CatalogError
from server.errors import ApiError, BadRequest, Conflict, DatabaseBusy
from server.flows.catalog.edit import MAX_EDITS, SettingChange, edited_text, last_edit
from server.flows.catalog.files import parse, read_files
from server.flows.catalog.member import CatalogMember, Proposal
from server.flows.catalog.switch import CatalogDiff, Send, say_nothing
from server.flows.catalog.update import CatalogUpdater, find_local, fitting, refused
from server.flows.checkpoints import CheckpointManager
from server.flows.other_gateways import OtherGateways, PeerRefused
from server.state.served_catalog import ServedCatalog

log = structlog.stdlib.get_logger("darkroom.catalog")

TURN_S = 0.5  # between two tries to have the turn
AGAIN_S = 1.0  # between two tries to reach a gateway
PREPARE = "/cluster/catalog/prepare"
SETTLE = "/cluster/catalog/settle"
NOTHING = "Nothing has changed on any server."

MakeContent = Callable[[CatalogVersion], tuple[CatalogContent, list[SettingChange]]]


class ClusterCatalogUpdater(CatalogUpdater):
    """Changes made at this gateway, which is reached at `url`."""

    def __init__(
        self,
        catalog: ServedCatalog,
        member: CatalogMember,
        store: CatalogStore,
        other_gateways: OtherGateways,
        checkpoints: CheckpointManager,
        *,
        url: str,
        lease_s: float,
        model_configs: Path,
        weights: Path,
    ) -> None:
        self._catalog = catalog
        self._member = member
        self._store = store
        self._other_gateways = other_gateways
        self._checkpoints = checkpoints
        self._url = url
        self._lease_s = lease_s
        self._model_configs = model_configs
        self._weights = weights

    async def swap(
        self, model: str, checkpoint: str, send: Send = say_nothing, *, keep_settings: bool = False
    ) -> CatalogDiff:
        """Give a model another checkpoint on all gateways. Raises ApiError."""

        def swapped(current: CatalogVersion) -> tuple[CatalogContent, list[SettingChange]]:
            image_model = find_local(self._catalog.current, model)
            settings = fitting(self._checkpoints, image_model, checkpoint, keep_settings=keep_settings)
            source, files = image_model.source.name, current.content.files
            edit = Edit(source, files[source], edited_text(files[source], checkpoint, settings))
            edits = (*current.content.edits, edit)[-MAX_EDITS:]
            return self._content({**files, source: edit.after}, edits), settings

        return await self._change(swapped, send)

    async def undo(self, send: Send = say_nothing) -> CatalogDiff:
        """Take back the latest swap on all gateways. Raises ApiError."""

        def undone(current: CatalogVersion) -> tuple[CatalogContent, list[SettingChange]]:
            files, edits = current.content.files, current.content.edits
            last = last_edit(edits, files.get)
            return self._content({**files, last.source: last.before}, edits[:-1]), []

        return await self._change(undone, send)

    async def reload(self, send: Send = say_nothing) -> CatalogDiff:
        """Make the files of this gateway's folder the catalog of all gateways."""

        def read(current: CatalogVersion) -> tuple[CatalogContent, list[SettingChange]]:
            return self._content(read_files(self._model_configs), current.content.edits), []

        return await self._change(read, send)

    def _content(self, files: dict[str, str], edits: tuple[Edit, ...]) -> CatalogContent:
        """Parse the files, and return them with the sums of their weights. Blocking. Raises CatalogError."""
        catalog = parse(files, self._model_configs, self._weights)
        return CatalogContent(files, self._member.sums(catalog), edits)

    async def _change(self, make: MakeContent, send: Send) -> CatalogDiff:
        change = f"change_{uuid.uuid4().hex[:20]}"
        send("waiting")
        while not await self._store.in_writer(self._store.take_turn, change):  # noqa: ASYNC110 - it is the database that knows
            await asyncio.sleep(TURN_S)
        try:
            await self._member.settle()
            send("inspecting")
            proposal, settings = await self._propose(change, make)
            send("loading")
            await self._prepare(proposal)
            send("writing")
            await self._commit(proposal)
        except BaseException:
            await self._end_turn()
            raise
        diff = await self._end_turn()
        return replace(diff or CatalogDiff((), (), (), {}), settings=tuple(settings))

    async def _propose(self, change: str, make: MakeContent) -> tuple[Proposal, list[SettingChange]]:
        current = await self._store.in_reader(self._store.current)
        if current is None or current.version != self._member.version:
            raise Conflict(f"{NOTHING} This one does not serve the current catalog: {self._member.problem}.", 10)
        try:
            content, settings = await asyncio.to_thread(make, current)
        except CatalogError as error:
            raise refused(error) from error
        return Proposal(change, current.version + 1, content), settings

    async def _prepare(self, proposal: Proposal) -> None:
        """Prepare the proposal here and on all others at once. Each is awaited even when another one fails."""
        here, elsewhere = await asyncio.gather(
            self._member.prepare(proposal), self._prepare_others(proposal), return_exceptions=True
        )
        if isinstance(here, ApiError):
            here.message = _at(self._url, here.message)
        for outcome in (here, elsewhere):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _prepare_others(self, proposal: Proposal) -> None:
        """Prepare the proposal on all other gateways, those that start meanwhile too. A gateway that does not answer is
        left out once its lease has run out."""
        prepared: set[str] = set()
        until = time.monotonic() + 2 * self._lease_s
        while waiting := [each for each in await self._other_gateways.others() if each.owner not in prepared]:
            asked = [self._other_gateways.request(each, "POST", PREPARE, proposal.to_json()) for each in waiting]
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            for gateway, outcome in zip(waiting, outcomes, strict=True):
                if isinstance(outcome, PeerRefused):
                    raise _refusal(outcome) from outcome
                if isinstance(outcome, BaseException) and not isinstance(outcome, GatewayGone):
                    raise outcome
                if not isinstance(outcome, BaseException):
                    prepared.add(gateway.owner)
                elif time.monotonic() > until:
                    message = (
                        f"{NOTHING} The server at {gateway.url} does not answer this one ({outcome}), but it runs: it "
                        "renews its lease. Stop it, or let the servers reach each other there, and try again."
                    )
                    raise Conflict(message, 10) from outcome
            if any(isinstance(outcome, BaseException) for outcome in outcomes):
                await asyncio.sleep(AGAIN_S)

    async def _commit(self, proposal: Proposal) -> None:
        """Record the new version. It is repeated if the connection breaks: then it may have been recorded or not."""
        arguments = (proposal.version, proposal.content, proposal.change)
        try:
            try:
                await self._store.in_writer(self._store.commit, *arguments)
            except DatabaseBusy:
                await self._store.in_patient_writer(self._store.commit, *arguments)
        except TurnLost as error:
            raise Conflict(f"{NOTHING} Another change was made meanwhile, or this server was given up.", 2) from error

    async def _end_turn(self) -> CatalogDiff | None:
        """End the turn, and have every gateway, this one first, look at the outcome. A gateway that can't be told looks
        by itself."""
        await self._store.in_patient_writer(self._store.end_turn)
        diff = await self._member.settle()
        others = await self._other_gateways.others()
        outcomes = await asyncio.gather(
            *(self._other_gateways.request(each, "POST", SETTLE) for each in others), return_exceptions=True
        )
        for gateway, outcome in zip(others, outcomes, strict=True):
            if isinstance(outcome, GatewayGone | PeerRefused):
                log.warning("a server was not told of the catalog", url=gateway.url, reason=str(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
        return diff


def _at(url: str, message: str) -> str:
    """Add the address of a server to its message."""
    reason = message.removeprefix("Nothing has changed").lstrip(".: ")
    return f"{NOTHING} At {url}: {reason}"


def _refusal(error: PeerRefused) -> ApiError:
    message = _at(error.gateway.url or "", error.message)
    if error.status == 400:
        return BadRequest(message, code="checkpoint_failed")
    return Conflict(message, 10)
