"""How the server stops. The first SIGTERM drains it: it still answers, and says so at /readyz, takes no new calls, and
ends when what runs has ended or the time for that is over. The second one ends it at once."""

import asyncio
import time
from contextlib import suppress
from types import FrameType

import structlog
import uvicorn

from server.state.active_calls import RunningCalls
from server.state.active_responses import LiveResponses

log = structlog.stdlib.get_logger("darkroom.serving")

CLOSING_S = 5  # for the books to be closed, and for the last answers to be sent


class DrainingServer(uvicorn.Server):
    """uvicorn closes its sockets when it is told to stop. Here it is told when there is nothing left to do."""

    def __init__(self, config: uvicorn.Config, calls: RunningCalls, live: LiveResponses, drain_s: float) -> None:
        config.timeout_graceful_shutdown = CLOSING_S
        super().__init__(config)
        self._calls = calls
        self._live = live
        self._drain_s = drain_s
        self._drain_until: float | None = None
        self._said = False  # not in the signal's handler, which may interrupt another line of the log

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has come; SIGINT counts like SIGTERM. The third one does not even wait for answers to be sent."""
        if self.should_exit or not self.started:
            self.should_exit = self.force_exit = True
        elif self._drain_until is not None:
            self._drain_until = 0
        else:
            self._calls.closed = True
            self._drain_until = time.monotonic() + self._drain_s

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if self._drain_until is not None and not self.should_exit:
            if not self._said:
                log.warning("stopping once what runs has ended; a second signal stops at once", calls=len(self._calls))
                self._said = True
            late = time.monotonic() > self._drain_until
            if late:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._live.stop(), CLOSING_S)
                    await asyncio.wait_for(self._calls.stop(), CLOSING_S)
            self.should_exit = late or self._idle()
        return await super().on_tick(counter)

    def _idle(self) -> bool:
        """No call and no response runs, and no request is being answered."""
        return len(self._calls) == 0 and len(self._live) == 0 and not self.server_state.tasks
