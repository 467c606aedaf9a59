"""A change of the catalog of all gateways: all that run prepare it, then all serve it, or none."""

import asyncio
import time
import uuid
from dataclasses import replace

import structlog

from server.accounts.catalogs import CatalogStore, ChangeLockLost
from server.backends.gateway_link import GatewayGone
from server.catalog.images import CatalogError
from server.errors import ApiError, BadRequest, Conflict, DatabaseBusy
from server.flows.catalog.edit import SettingChange
from server.flows.catalog.member import CatalogMember, Proposal
from server.flows.catalog.switch import CatalogDiff, Send
from server.flows.catalog.update import Files, MakeChange, to_bad_request
from server.flows.gateways import OtherGateways, PeerRefused

log = structlog.stdlib.get_logger("darkroom.catalog")

TURN_S = 0.5  # between two tries to have the turn
AGAIN_S = 1.0  # between two tries to reach a gateway
PREPARE = "/cluster/catalog/prepare"
SETTLE = "/cluster/catalog/settle"
NOTHING = "Nothing has changed on any server."


class ClusterCatalog:
    """Makes changes at this gateway, which is reached at `url`: all gateways prepare them, then the database has
    them."""

    def __init__(
        self, member: CatalogMember, store: CatalogStore, other_gateways: OtherGateways, *, url: str, lease_s: float
    ) -> None:
        self._member = member
        self._store = store
        self._other_gateways = other_gateways
        self._url = url
        self._lease_s = lease_s

    async def change(self, make: MakeChange, send: Send) -> CatalogDiff:
        """Have all gateways serve the content that `make` returns. Raises ApiError, and then nothing has changed on
        any."""
        change = f"change_{uuid.uuid4().hex[:20]}"
        send("waiting")
        while not await self._store.in_writer(self._store.acquire_change_lock, change):  # noqa: ASYNC110 - it is the database that knows
            await asyncio.sleep(TURN_S)
        try:
            await self._member.settle()
            send("inspecting")
            proposal, keys = await self._propose(change, make)
            send("loading")
            await self._prepare(proposal)
            send("writing")
            await self._commit(proposal)
        except BaseException:
            await self._end_turn()
            raise
        diff = await self._end_turn()
        return replace(diff or CatalogDiff((), (), (), {}), keys=keys)

    async def _propose(self, change: str, make: MakeChange) -> tuple[Proposal, tuple[SettingChange, ...]]:
        current = await self._store.in_reader(self._store.current)
        if current is None or current.version != self._member.version:
            raise Conflict(f"{NOTHING} This one does not serve the current catalog: {self._member.problem}.", 10)
        try:
            made = await asyncio.to_thread(make, current.content.files, current.content.edits)
            await self._load(change, made.files)
            sums = await asyncio.to_thread(self._member.checksums_of, made.files)
        except CatalogError as error:
            raise to_bad_request(error) from error
        version = current.version + 1
        return Proposal(change=change, version=version, files=made.files, weights=sums, edits=made.edits), made.keys

    async def _load(self, change: str, files: Files) -> None:
        """Load what is new here, before anything is read for its sum. Raises ApiError."""
        try:
            await self._member.load(change, files)
        except ApiError as error:
            error.message = _with_server(self._url, error.message)
            raise

    async def _prepare(self, proposal: Proposal) -> None:
        """Prepare the proposal here and on all others at once. Each is awaited even when another one fails."""
        here, elsewhere = await asyncio.gather(
            self._member.prepare(proposal), self._prepare_others(proposal), return_exceptions=True
        )
        if isinstance(here, ApiError):
            here.message = _with_server(self._url, here.message)
        for outcome in (here, elsewhere):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _prepare_others(self, proposal: Proposal) -> None:
        """Prepare the proposal on all other gateways, those that start meanwhile too. A gateway that does not answer is
        left out once its lease has run out."""
        prepared: set[str] = set()
        until = time.monotonic() + 2 * self._lease_s
        while waiting := [each for each in await self._other_gateways.others() if each.owner not in prepared]:
            body = proposal.model_dump_json().encode()
            asked = [self._other_gateways.request(each, "POST", PREPARE, body) for each in waiting]
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
                await self._store.retry_in_writer(self._store.commit, *arguments)
        except ChangeLockLost as error:
            raise Conflict(f"{NOTHING} Another change was made meanwhile, or this server was given up.", 2) from error

    async def _end_turn(self) -> CatalogDiff | None:
        """End the turn, and have every gateway, this one first, look at the outcome. A gateway that can't be told looks
        by itself."""
        await self._store.retry_in_writer(self._store.release_change_lock)
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


def _with_server(url: str, message: str) -> str:
    """Add the address of a server to its message."""
    reason = message.removeprefix("Nothing has changed").lstrip(".: ")
    return f"{NOTHING} At {url}: {reason}"


def _refusal(error: PeerRefused) -> ApiError:
    message = _with_server(error.gateway.url or "", error.message)
    if error.status == 400:
        return BadRequest(message, code="checkpoint_failed")
    return Conflict(message, 10)
