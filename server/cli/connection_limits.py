"""Limits of the connections that the server has at once, in all and from one address: which one is closed when there
are too many.

Connections that wait for a request (new, idle, or with half of its headers) make room for new ones, oldest first. Those
whose request is being answered never do, nor those whose client still reads an answer.
"""

import resource
from collections import Counter
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Protocol

from server.http.proxy_headers import Network, is_trusted

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
