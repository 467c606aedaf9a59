"""Short ways to make a call and a result, and to check the ledger."""

from collections.abc import Callable

from server.accounts import report
from server.accounts.db import Database
from server.accounts.gateways import GatewayStore
from server.accounts.ledger import BilledCall, StoredResult

GROUPS = frozenset({"alpha", "beta"})


def result(name: str) -> StoredResult:
    return StoredResult(f"{name}.png", "image/png", 8, 8, 100, "0" * 64, 0)


def call(call_id: str, key_id: str, price: int = 1000) -> BilledCall:
    return BilledCall(call_id, key_id, "images.generations", "alpha", price)


def server(database: Database, owner: str, url: str | None = None, lease_s: float = 60) -> GatewayStore:
    """A server that runs."""
    gateway = GatewayStore(database, owner, url, lease_s)
    gateway.register()
    return gateway


def clean(database: Database) -> bool:
    return report.check(database) == []


class Attempts:
    """Work for a writer, which counts how often it was tried."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._work, self.count = work, 0

    def __call__(self) -> int:
        self.count += 1
        return self._work()
