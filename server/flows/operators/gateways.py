"""Every server of the database, with its own report: asked at one of them."""

import asyncio
from collections.abc import Callable
from typing import cast

import structlog

from server.accounts.gateways import GatewayReport, GatewayStore
from server.backends.gateway_link import GatewayGone
from server.flows.other_gateways import OtherGateways, PeerRefused
from server.schemas.cluster import GatewayCard
from server.schemas.health import ReadinessDetails

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
        GatewayCard(
            id=report.owner,
            url=report.url,
            asked=report.owner == gateways.owner,
            started_at=report.started_at,
            alive=report.alive,
            catalog_version=report.catalog_version,
            state=state,
        )
        for report, state in zip(reports, states, strict=True)
    ]
