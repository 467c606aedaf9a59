"""The catalog and the moderation policy in use. Each is replaced whole: a call keeps what it found."""

import asyncio

from server.catalog.images import Catalog
from server.moderation.policy import Policy


class ServedCatalog:
    """The catalog in use. `current` is replaced whole, by a task that holds `lock`."""

    def __init__(self, catalog: Catalog) -> None:
        self.current = catalog
        self.lock = asyncio.Lock()


class ServedPolicy:
    """The policy in use. `lock` is held while it is replaced."""

    def __init__(self, policy: Policy) -> None:
        self.current = policy
        self.lock = asyncio.Lock()
