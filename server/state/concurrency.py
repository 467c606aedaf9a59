"""Places among a key's calls, for what is no call or response yet, or never becomes one: chats, above all."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Places:
    """How many of them each key has."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def of_key(self, key_id: str) -> int:
        """Those of one key."""
        return self._taken[key_id]

    @contextmanager
    def taken(self, key_id: str) -> Iterator[None]:
        """One of them, while this is entered."""
        self._taken[key_id] += 1
        try:
            yield
        finally:
            self._taken[key_id] -= 1
            if not self._taken[key_id]:
                del self._taken[key_id]
