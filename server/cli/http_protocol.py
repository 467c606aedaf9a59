"""uvicorn's HTTP protocol with limits: of connections, of the time for headers, and of how long an answer goes unread.

The time for bodies is `server.http.body_limit`'s matter, which can answer. Here connections are closed without a word.
"""

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Protocol, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from server.cli.arrival import AnswerArrival
from server.http.delivery import ARRIVAL
from server.http.public_address import Network, is_trusted

MOST_CONNECTIONS = 10_000
IPV6_PREFIX = 64  # what one customer of a provider has at least


class Connection(Protocol):
    """The interface of a connection that is counted."""

    @property
    def has_unsent(self) -> bool:
        """Return whether its client has not read all of the last answer."""

    def drop(self) -> None:
        """Close the connection at once."""


class ConnectionLimits:
    """Counts connections. `trusted` are proxies, which bring many clients from one address."""

    def __init__(self, total: int, per_address: int, trusted: Iterable[Network] = ()) -> None:
        self._total = total
        self._per_address = per_address
        self._trusted = tuple(trusted)
        self._sources: dict[Connection, str | None] = {}
        self._by_source: Counter[str] = Counter()
        self._waiting: dict[Connection, None] = {}  # in the order in which they began to wait

    def __len__(self) -> int:
        return len(self._sources)

    def admit(self, connection: Connection, address: str | None) -> bool:
        """Return whether there is room for this one; it then waits for its first request. Another one may be
        dropped."""
        source = self._source(address)
        of_source = source is not None and self._by_source[source] >= self._per_address
        if of_source or len(self) >= self._total:
            candidates = (other for other in self._waiting if not of_source or self._sources[other] == source)
            oldest = next((other for other in candidates if not other.has_unsent), None)
            if oldest is None:
                return False
            self.remove(oldest)
            oldest.drop()
        self._sources[connection] = source
        if source is not None:
            self._by_source[source] += 1
        self._waiting[connection] = None
        return True

    def wait(self, connection: Connection) -> None:
        """Count the connection as waiting for its next request."""
        if connection in self._sources:
            self._waiting.pop(connection, None)
            self._waiting[connection] = None

    def work(self, connection: Connection) -> None:
        """Count the connection as working: its request is being answered."""
        self._waiting.pop(connection, None)

    def remove(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        self._waiting.pop(connection, None)
        source = self._sources.pop(connection, None)
        if source is not None:
            self._by_source[source] -= 1
            if not self._by_source[source]:
                del self._by_source[source]

    def _source(self, address: str | None) -> str | None:
        """Return the network that counts as one address, or None for a client that is not limited."""
        if address is None:
            return None
        if is_trusted(address, self._trusted):
            return None
        ip = ip_address(address.partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        return str(ip_network((ip, IPV6_PREFIX), strict=False)) if ip.version == 6 else str(ip)


def raise_descriptor_limit() -> int:
    """Allow this process as many descriptors as the system lets it have. Returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft


def most_connections(descriptors: int, wanted: int | None) -> int:
    """Return the most connections: half of the descriptors, as the others are for files, the database, workers, and
    connections on their way in and out."""
    return max(1, min(wanted or MOST_CONNECTIONS, descriptors // 2))


# Between two requests. Longer than clients keep connections (httpx and OpenAI's SDKs: 5 s): one that sends its request
# while the server closes the connection gets a reset, and does not know whether the request was read.
IDLE_S = 75

REFUSAL = (
    b'{"error": {"message": "The server has too many connections, or too many from your address. Try again in a '
    b'moment.", "type": "server_error", "param": null, "code": "too_many_connections"}}'
)
REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 5\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(REFUSAL), REFUSAL)
)


class LimitedProtocol(H11Protocol):
    """One connection. It waits for a request, or a request is being answered.

    The rest of a body that a client still sends after its answer is read and thrown away, for as long as headers may
    take: a client that writes before it reads would otherwise lose its answer.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        header_timeout_s: float,
        send_timeout_s: float,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._header_timeout_s = header_timeout_s
        self._send_timeout_s = send_timeout_s
        self._waiting_since: float | None = None  # None while a request is being answered, and between requests
        self._unsent_bytes = 0  # when it was last looked at
        self._moved_at = 0.0  # when there was less of that, or nothing
        self._arrival: AnswerArrival | None = None  # of the answer to the last request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in H11Protocol
        """Admit the connection, or refuse it if there are too many."""
        super().connection_made(transport)
        self._moved_at = time.monotonic()
        if self._limits.admit(self, self.client[0] if self.client else None):
            self._waiting_since = time.monotonic()
        else:
            transport.write(REFUSED)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the connection's place, and look whether the last answer had arrived."""
        self._limits.remove(self)
        if self._arrival is not None:
            if exc is not None or not self.cycle.response_complete:
                self._arrival.settle(False)
            else:
                self._arrival.follow_closing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take data of the client, and note when a request begins."""
        before = self.cycle
        if self._arrival is not None and before.response_complete:
            self._arrival.settle(True)  # whoever sends the next request has read the answer
        super().data_received(data)
        is_idle = before is None or before.response_complete
        if is_idle and self._waiting_since is None:
            self._waiting_since = time.monotonic()
        self._count_request(before)

    def on_response_complete(self) -> None:
        """Wait for the next request, or go on with it if it came meanwhile."""
        self._waiting_since = None  # until the next request begins, uvicorn's own limit is IDLE_S
        self._limits.wait(self)
        before = self.cycle
        super().on_response_complete()  # which may begin the next request, if the client did not wait
        self._count_request(before)

    @property
    def has_unsent(self) -> bool:
        """Return whether the client has not read all that was sent."""
        return self.transport.get_write_buffer_size() > 0

    def drop(self) -> None:
        """Close the connection, also with bytes that have not been sent."""
        if self._arrival is not None and self.has_unsent:
            self._arrival.settle(False)
        self.transport.abort()

    def drop_if_late(self, now: float) -> None:
        """Close the connection if its client has been too slow. `now` is of time.monotonic()."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if not unsent_bytes or unsent_bytes < self._unsent_bytes:
            self._moved_at = now
        self._unsent_bytes = unsent_bytes
        if self._waiting_since is not None and unsent_bytes:
            self._waiting_since = now  # a request can't be expected before its client has the last answer
        waits_late = self._waiting_since is not None and now - self._waiting_since > self._header_timeout_s
        if waits_late or now - self._moved_at > self._send_timeout_s:
            self.drop()

    def _count_request(self, before: object) -> None:
        """Count the connection as working if a request has begun; `before` is the cycle that there was before."""
        if self.cycle is not before:
            self._waiting_since = None
            self._limits.work(self)
            self._arrival = AnswerArrival(self.transport)
            self.scope[ARRIVAL] = self._arrival  # type: ignore[literal-required]  # not one of ASGI's own


def drop_late(connections: Iterable[object]) -> None:
    """Close every connection whose client has been too slow."""
    now = time.monotonic()
    for connection in list(connections):
        if isinstance(connection, LimitedProtocol):
            connection.drop_if_late(now)


def protocol_class(limits: ConnectionLimits, header_timeout_s: float, send_timeout_s: float) -> type[asyncio.Protocol]:
    """Return the factory by which uvicorn makes the protocol of each connection."""
    return cast(
        "type[asyncio.Protocol]",  # uvicorn only calls it
        partial(LimitedProtocol, limits=limits, header_timeout_s=header_timeout_s, send_timeout_s=send_timeout_s),
    )
