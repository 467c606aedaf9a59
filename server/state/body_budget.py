"""How many request bodies a key may send at once, and how many bytes of bodies may be in memory.

A body that finds no room waits for some seconds without being read, which costs a connection and nothing else. It is
refused only then, since a client that is refused sends the whole body again.
"""

import asyncio
import ctypes
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from server.errors import Overloaded, RateLimited

FREE_BYTES = 64 * 1024  # of each body, which do not count: what a connection buffers anyway
STEP_BYTES = 1024**2  # by which a body without a declared length takes more of the budget
LARGE_BYTES = 4 * 1024**2  # a body that leaves memory behind which is worth giving back
PATIENCE_S = 10.0
RETRY_AFTER_S = 5.0


class BodyBudget:
    """The bodies of one server. A body that is larger than a budget is let in when nothing else counts in it."""

    def __init__(self, total_bytes: int, per_key_bytes: int, patience_s: float = PATIENCE_S) -> None:
        self.parsing = asyncio.Lock()  # for large bodies: each holds the interpreter lock for up to 0.3 s
        self._total_bytes = total_bytes
        self._per_key_bytes = per_key_bytes
        self._patience_s = patience_s
        self._in_flight: Counter[str] = Counter()  # bytes by key
        self._sending: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._trim: asyncio.TimerHandle | None = None

    @property
    def in_flight_bytes(self) -> int:
        """Return the bytes of bodies that are in memory."""
        return self._in_flight.total()

    @asynccontextmanager
    async def place(self, key_id: str, limit: int) -> AsyncIterator[None]:
        """Take a place for one of the bodies that a key may send at once, `limit` many. As many may wait. Raises
        RateLimited.

        A retry needs one too, but not one of the key's calls: the call that it joins may have the last of those.
        """
        too_many = self._waiting[key_id] >= limit
        if too_many or not await self._wait(key_id, lambda: self._sending[key_id] < limit):
            message = f"This key is sending {limit} requests, which is its limit. Wait until one of them has been sent."
            raise RateLimited(message, RETRY_AFTER_S, {})
        self._sending[key_id] += 1
        try:
            yield
        finally:
            self._take_back(self._sending, key_id, 1)

    async def reserve(self, key_id: str, size_bytes: int) -> None:
        """Reserve bytes that are about to be read. Raises RateLimited where the key has too many, Overloaded where all
        have."""
        if not await self._wait(key_id, lambda: self._has_room(key_id, size_bytes)):
            if not self._key_has_room(key_id, size_bytes):
                message = (
                    "The requests that this key is sending or waiting for are too large together. Wait for one of them "
                    "to end, or send less in each."
                )
                raise RateLimited(message, RETRY_AFTER_S, {})
            raise Overloaded("The server has no memory for this request now. Try again in a moment.", RETRY_AFTER_S)
        self._in_flight[key_id] += size_bytes

    def release(self, key_id: str, size_bytes: int) -> None:
        """Release bytes that are no longer in memory."""
        self._take_back(self._in_flight, key_id, size_bytes)
        if size_bytes >= LARGE_BYTES and self._trim is None:
            # later, when nothing refers to the body any more, and once for many bodies
            self._trim = asyncio.get_running_loop().call_later(1.0, self._release_free_memory)

    def _release_free_memory(self) -> None:
        self._trim = None
        asyncio.get_running_loop().run_in_executor(None, release_free_memory)

    def _has_room(self, key_id: str, size_bytes: int) -> bool:
        total = self.in_flight_bytes
        return self._key_has_room(key_id, size_bytes) and (not total or total + size_bytes <= self._total_bytes)

    def _key_has_room(self, key_id: str, size_bytes: int) -> bool:
        mine = self._in_flight[key_id]
        return not mine or mine + size_bytes <= self._per_key_bytes

    async def _wait(self, key_id: str, ready: Callable[[], bool]) -> bool:
        """Return whether there is room before patience ends. Nothing else runs between that and the return."""
        if ready():
            return True
        self._waiting[key_id] += 1
        try:
            async with asyncio.timeout(self._patience_s):
                while not ready():
                    await self._changed.wait()
        except TimeoutError:
            return False
        finally:
            self._take_back(self._waiting, key_id, 1)
        return True

    def _take_back(self, counter: Counter[str], key_id: str, amount: int) -> None:
        counter[key_id] -= amount
        if not counter[key_id]:
            del counter[key_id]
        self._changed.set()
        self._changed = asyncio.Event()


class BodyLease:
    """The share of one request in the budget, from its first byte until nothing holds its body."""

    def __init__(self, budget: BodyBudget, declared_bytes: int) -> None:
        self._budget = budget
        self._declared_bytes = declared_bytes
        self._key_id: str | None = None
        self._reserved_bytes = 0
        self._holders = 1

    @property
    def begun(self) -> bool:
        """Return whether the request's key is known, so that its body may be read."""
        return self._key_id is not None

    async def begin(self, key_id: str) -> None:
        """Reserve the bytes that the request declares. Raises RateLimited and Overloaded, as `extend` does."""
        self._key_id = key_id
        await self.extend(self._declared_bytes)

    async def extend(self, received_bytes: int) -> None:
        """Reserve more if the body has become longer than the reserved bytes."""
        missing = received_bytes - FREE_BYTES - self._reserved_bytes
        if self._key_id is not None and missing > 0:
            step = missing if received_bytes <= self._declared_bytes else max(missing, STEP_BYTES)
            await self._budget.reserve(self._key_id, step)
            self._reserved_bytes += step

    def share(self) -> Callable[[], None]:
        """Add another holder, such as a call that outlives its request. Call the function that is returned when it has
        ended."""
        self._holders += 1
        return self.release

    def release(self) -> None:
        """Remove a holder. With the last one the bytes are free."""
        self._holders -= 1
        if not self._holders and self._key_id is not None and self._reserved_bytes:
            self._budget.release(self._key_id, self._reserved_bytes)
            self._reserved_bytes = 0


def release_free_memory() -> None:
    """Give freed memory back to the system. It takes milliseconds, without the interpreter lock.

    glibc keeps freed memory unless it is asked. Other C libraries have no such function.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
