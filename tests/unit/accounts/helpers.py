"""Short ways to make a call and a result, and to check the ledger."""

from collections.abc import Callable, Sequence

from server.accounts import report, results
from server.accounts.db import Database
from server.accounts.gateways import GatewayStore
from server.accounts.ledger import BilledCall, Ledger
from server.accounts.results import ResultStore, StoredResult
from server.accounts.store import Write
from server.accounts.tables import HoldRow

GROUPS = frozenset({"alpha", "beta"})


def result(name: str) -> StoredResult:
    return StoredResult(f"{name}.png", "image/png", 8, 8, 100, "0" * 64, 0)


def call(call_id: str, key_id: str, price: int = 1000) -> BilledCall:
    return BilledCall(call_id, key_id, "images.generations", "alpha", price)


def capture(
    ledger: Ledger, call_id: str, images: Sequence[StoredResult], *writes: Write, price: int | None = None
) -> None:
    """Charge a call with its images, as the image flow does: the price that it holds, unless another one is given."""
    if price is None:
        with ledger._database.read() as session:
            hold = session.get(HoldRow, call_id)
        price = hold.price if hold is not None else 0
    ledger.capture(call_id, price, [ResultStore(ledger._database).record_write(call_id, images), *writes])


def server(database: Database, owner: str, url: str | None = None, lease_s: float = 60) -> GatewayStore:
    """A server that runs."""
    gateway = GatewayStore(database, owner, url, lease_s)
    gateway.register()
    return gateway


def clean(database: Database) -> bool:
    return report.check(database) + results.check(database) == []


class Attempts:
    """Work for a writer, which counts how often it was tried."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work, self.count = work, 0

    def __call__(self) -> object:
        self.count += 1
        return self._work()
