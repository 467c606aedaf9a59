"""A task that belongs to the server, not to a request: clients attach to it, leave, and may come back."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

FOREVER = math.inf


class CancelReason(Enum):
    """Why a task was cancelled."""

    ABANDONED = auto()  # no client is attached, and the grace period is over
    REQUESTED = auto()  # by its key, which cancels or deletes it
    BY_OPERATOR = auto()
    SHUTDOWN = auto()  # the server stops


class DetachedTask(ABC):
    """Without a listener the task runs on for `grace_s` seconds, then it is cancelled. Everything on one event loop."""

    def __init__(self, grace_s: float) -> None:
        self.cancel_reason: CancelReason | None = None
        self._grace_s = grace_s
        self._task: asyncio.Task[Any] | None = None
        self._listeners = 0
        self.was_followed = False  # a client has been attached
        self.in_background = False  # its client was told to come back for the result
        self.answered = False  # its answer, or the word to come back for it, has arrived whole at a client
        self._when_left: list[Callable[[], object]] = []
        self._grace_timer: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def done(self) -> bool:
        """Return whether nothing more will happen."""

    @property
    def cancelled(self) -> bool:
        """Return whether `cancel` was called. Images that were stored and charged before remain."""
        return self.cancel_reason is not None

    @property
    def has_listeners(self) -> bool:
        """Return whether a client is attached."""
        return self._listeners > 0

    @property
    def has_lost_client(self) -> bool:
        """Return whether the clients that were attached have left without the whole answer."""
        return self.was_followed and not self.has_listeners and not self.answered

    def when_left(self, callback: Callable[[], object]) -> None:
        """Call `callback` whenever the last client has left."""
        self._when_left.append(callback)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Attach a client while this is entered."""
        self._listeners += 1
        self.was_followed = True
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                for callback in tuple(self._when_left):
                    callback()
                if not self.done:
                    self._start_grace()

    def detach(self) -> None:
        """Let the task go on without listeners from now on, until its end."""
        self.in_background = True
        self._grace_s = FOREVER

    def cancel(self, reason: CancelReason = CancelReason.REQUESTED) -> None:
        """Cancel the task at its next await."""
        self.cancel_reason = reason
        if self._task is not None and not self.done:
            self._task.cancel()

    def _start_grace(self) -> None:
        if self._grace_s <= 0:
            self.cancel(CancelReason.ABANDONED)
        elif self._grace_s < FOREVER:
            loop = asyncio.get_running_loop()
            self._grace_timer = loop.call_later(self._grace_s, self.cancel, CancelReason.ABANDONED)
