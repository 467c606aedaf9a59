"""The other gateways of a cluster, asked by this one on their private listeners."""

import asyncio
from collections.abc import Mapping
from typing import Any

from server.accounts.gateways import Gateway, GatewayStore
from server.backends.gateway_link import GatewayGone, GatewayLink
from server.clock import Clock

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
