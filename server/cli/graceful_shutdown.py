"""How the server stops.

The first SIGTERM, SIGINT or SIGQUIT drains it: it takes no new calls, says so at /readyz, and ends when the running
calls have ended or their time is over. The second one cancels the running calls. The third one does not even wait for
answers to be sent. `server.cli.signals` has the others.
"""

import asyncio
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType

import structlog
import uvicorn

from server.cli.http_protocol import drop_late
from server.cli.signals import RecordedSignals, signal_handlers
from server.services import Services

log = structlog.stdlib.get_logger("darkroom.serving")

CLOSING_S = 5  # to record the ends of cancelled calls, and to send the last answers


class DrainingServer(uvicorn.Server):
    """uvicorn closes its sockets at the first signal. This one keeps them open until nothing runs."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        config.timeout_graceful_shutdown = CLOSING_S
        super().__init__(config)
        self.services = services
        self._drain = services.running.drain
        self._calls = services.running.calls
        self._chats = services.running.chats
        self._responses = services.running.responses
        self._drain_s = services.settings.drain_s
        self._drain_until: float | None = None
        self._signals = RecordedSignals()
        self._is_told = False
        self._asked_by: list[str] = []  # to be logged, not in the signal handler, which may interrupt another log line

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Obey signals while this is entered."""
        with super().capture_signals(), signal_handlers(self.handle_exit, self._signals):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: the first one drains the server, the second one cancels the running calls, the third one
        ends it."""
        self._asked_by.append(signal.Signals(sig).name)
        if self.should_exit or not self.started:
            self.should_exit = self.force_exit = True
        elif self._drain_until is not None:
            self._drain_until = 0
        else:
            self._drain.draining = True
            self._drain_until = time.monotonic() + self._drain_s

    async def on_tick(self, counter: int) -> bool:
        """Check ten times a second whether to end. Slow clients are looked for every second."""
        self._signals.handle()
        while self._asked_by:
            words = "at once" if self._is_told else "once what runs has ended; a second signal stops at once"
            log.warning(f"stopping {words}", signal=self._asked_by.pop(0), calls=len(self._calls))
            self._is_told = True
        if counter % 10 == 0:
            drop_late(self.server_state.connections)
        if self._drain_until is not None and not self.should_exit:
            is_late = time.monotonic() > self._drain_until
            if is_late:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._responses.stop(), CLOSING_S)
                    await asyncio.wait_for(self._chats.stop(), CLOSING_S)
                    await asyncio.wait_for(self._calls.stop(), CLOSING_S)
            self.should_exit = is_late or self._is_idle()
        return await super().on_tick(counter)

    def _is_idle(self) -> bool:
        return self.services.running.total == 0 and not self.server_state.tasks
