"""Work that somebody listens to. Without a listener it goes on for as long as its patience lasts: one may come back."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FOREVER = math.inf


class Listened(ABC):
    """A task of the server's, and who listens to it. Everything on one event loop."""

    def __init__(self, patience_s: float) -> None:
        self.abandoned = False
        self._patience_s = patience_s
        self._task: asyncio.Task[Any] | None = None
        self._listeners = 0
        self._last_wait: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether nothing more will happen."""

    @property
    def heard(self) -> bool:
        """Whether somebody listens."""
        return self._listeners > 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While this is entered, somebody waits."""
        self._listeners += 1
        if self._last_wait is not None:
            self._last_wait.cancel()
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners and not self.over:
                self._wait_for_another()

    def cancel(self) -> None:
        """End it now. What is stored and charged by then stays so."""
        self.abandoned = True
        if self._task is not None and not self.over:
            self._task.cancel()

    def _wait_for_another(self) -> None:
        if self._patience_s <= 0:
            self.cancel()
        elif self._patience_s < FOREVER:
            self._last_wait = asyncio.get_running_loop().call_later(self._patience_s, self.cancel)
