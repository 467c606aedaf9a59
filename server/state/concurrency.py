"""Slots among a key's concurrent calls, for requests that are not a running call or response (yet): chats above all."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class KeyConcurrency:
    """How many slots each key has in use."""

    def __init__(self) -> None:
        self._in_use: Counter[str] = Counter()

    def count(self, key_id: str) -> int:
        """Return how many slots this key has in use."""
        return self._in_use[key_id]

    @contextmanager
    def acquire(self, key_id: str) -> Iterator[None]:
        """Hold one slot while this is entered."""
        self._in_use[key_id] += 1
        try:
            yield
        finally:
            self._in_use[key_id] -= 1
            if not self._in_use[key_id]:
                del self._in_use[key_id]
