"""Whose image is decoded next.

A key has one image in the decoders at a time, and of the waiting keys the one that was served least recently is
next: a call of sixteen large references does not stop the calls of others. Large images are decoded one at a time,
which bounds the memory of all decoders together; small ones overtake those that wait.

Files wait for their turn before they are read too (`server.flows.references`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class _Turn:
    owner: str
    large: bool
    granted: asyncio.Future[None]


class FairSemaphore:
    """Gives turns to decode: at most `slots` run at once, `per_owner` of them of one owner. Everything on one event
    loop."""

    def __init__(self, slots: int, per_owner: int = 1) -> None:
        self._slots = slots
        self._per_owner = per_owner
        self._waiting: list[_Turn] = []
        self._running: list[_Turn] = []
        self._turns_begun = 0
        self._last_turn: dict[str, int] = {}  # of the owners that run or wait; the greatest number is the latest

    @asynccontextmanager
    async def take(self, owner: str, *, large: bool = False) -> AsyncIterator[None]:
        """Wait until it is this owner's turn, and hold it for the block."""
        turn = _Turn(owner, large, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._grant()
        try:
            await turn.granted
            yield
        finally:  # a waiter that is cancelled may have been granted its turn just before
            (self._running if turn in self._running else self._waiting).remove(turn)
            if not any(other.owner == owner for other in (*self._running, *self._waiting)):
                self._last_turn.pop(owner, None)
            self._grant()

    def _grant(self) -> None:
        while len(self._running) < self._slots and (candidates := list(filter(self._may_run, self._waiting))):
            turn = min(candidates, key=lambda candidate: self._last_turn.get(candidate.owner, 0))
            self._waiting.remove(turn)
            self._running.append(turn)
            self._turns_begun += 1
            self._last_turn[turn.owner] = self._turns_begun
            turn.granted.set_result(None)

    def _may_run(self, turn: _Turn) -> bool:
        of_owner = sum(running.owner == turn.owner for running in self._running)
        has_place = of_owner < self._per_owner and not (turn.large and any(one.large for one in self._running))
        return has_place and not turn.granted.cancelled()
