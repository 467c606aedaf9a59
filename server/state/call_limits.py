"""How many calls each key has begun in the last minute, by a clock that nobody sets, and how many it runs at once."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

WINDOW_S = 60.0


class CallRate:
    """The beginnings of calls, by key. A key that is idle for a minute takes no memory once another one is counted."""

    def __init__(self) -> None:
        self._begun: defaultdict[str, deque[float]] = defaultdict(deque)

    def begin(self, key_id: str, limit: int) -> bool:
        """Count one more call, and return True; return False if the key has begun `limit` calls in the last minute."""
        for other in list(self._begun):
            self._delete(other)
        begun = self._begun[key_id]
        if len(begun) >= limit:
            return False
        begun.append(time.monotonic())
        return True

    def remaining(self, key_id: str, limit: int) -> int:
        """Return how many of `limit` calls the key may begin now."""
        self._delete(key_id)
        return max(0, limit - len(self._begun.get(key_id, ())))

    def reset_s(self, key_id: str) -> float:
        """Return the seconds until the oldest of the counted calls is a minute old."""
        self._delete(key_id)
        begun = self._begun.get(key_id)
        return max(0.0, begun[0] + WINDOW_S - time.monotonic()) if begun else 0.0

    def _delete(self, key_id: str) -> None:
        begun = self._begun.get(key_id)
        while begun and begun[0] <= time.monotonic() - WINDOW_S:
            begun.popleft()
        if begun is not None and not begun:
            del self._begun[key_id]


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
