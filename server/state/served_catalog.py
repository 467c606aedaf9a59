"""The catalog in use. A call keeps the model that it found, so a change never touches a running call."""

import asyncio

from server.catalog.images import Catalog


class ServedCatalog:
    """The catalog in use. `current` is replaced whole, by a task that holds `lock`."""

    def __init__(self, catalog: Catalog) -> None:
        self.current = catalog
        self.lock = asyncio.Lock()
