"""The other gateways of a cluster, asked by this one on their private listeners, and their reports for operators."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import structlog

from server.accounts.gateways import Gateway, GatewayReport, GatewayStore
from server.backends.gateway_link import GatewayGone, GatewayLink
from server.clock import Clock
from server.schemas.status import GatewayCard, ReadinessDetails

POLL_EVERY_S = 2.0


class PeerRefused(Exception):
    """Another gateway answered with an error: its status and its message."""

    def __init__(self, gateway: Gateway, status: int, message: str) -> None:
        super().__init__(message)
        self.gateway = gateway
        self.status = status
        self.message = message


class OtherGateways:
    """The gateways that run by their leases. A gateway that stops answering is waited for as long as it renews its
    lease."""

    def __init__(self, gateways: GatewayStore, link: GatewayLink, clock: Clock) -> None:
        self._gateways = gateways
        self._link = link
        self._clock = clock

    async def others(self) -> list[Gateway]:
        """Return the other gateways that can be asked."""
        return [each for each in await self._gateways.in_reader(self._gateways.others) if each.url is not None]

    async def request(self, gateway: Gateway, method: str, path: str, body: bytes = b"") -> Mapping[str, Any]:
        """Send a request to another gateway, and return its answer. Raises GatewayGone and PeerRefused."""
        asking = asyncio.create_task(self._link.request(gateway.url or "", method, path, body, self._clock.now()))
        try:
            while not (await asyncio.wait({asking}, timeout=POLL_EVERY_S))[0]:
                if gateway.owner not in {each.owner for each in await self.others()}:
                    raise GatewayGone("its lease has run out")
            status, answer = asking.result()
        finally:
            asking.cancel()
        if status != 200:
            raise PeerRefused(gateway, status, answer["error"]["message"])
        found: Mapping[str, Any] = answer
        return found


log = structlog.stdlib.get_logger("darkroom.gateways")

STATE = "/cluster/state"
ANSWER_LIMIT_S = 5.0


async def describe_gateways(
    gateways: GatewayStore, other_gateways: OtherGateways | None, own_state: Callable[[], ReadinessDetails]
) -> list[GatewayCard]:
    """Describe every gateway, oldest first. All are asked at once."""
    reports = await gateways.in_reader(gateways.list_all)

    async def state_of(report: GatewayReport) -> ReadinessDetails | None:
        if report.owner == gateways.owner:
            return own_state()
        if other_gateways is None or report.url is None or not report.alive:
            return None
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                return cast(ReadinessDetails, await other_gateways.request(report, "GET", STATE))
        except (TimeoutError, GatewayGone, PeerRefused) as error:
            log.warning("a server does not answer", url=report.url, reason=str(error))
            return None

    states = await asyncio.gather(*(state_of(report) for report in reports))
    return [
        GatewayCard.describe(report, id=report.owner, asked=report.owner == gateways.owner, state=state)
        for report, state in zip(reports, states, strict=True)
    ]
