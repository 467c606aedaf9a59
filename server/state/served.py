"""The catalog and the moderation policy in use. Each is replaced whole: a call keeps what it found."""

import asyncio
from typing import Generic, TypeVar

from server.catalog.images import Catalog
from server.moderation.policy import Policy

Value = TypeVar("Value")


class Served(Generic[Value]):
    """What is in use. `current` is replaced whole, by a task that holds `lock`."""

    def __init__(self, current: Value) -> None:
        self.current = current
        self.lock = asyncio.Lock()


ServedCatalog = Served[Catalog]
ServedPolicy = Served[Policy]
