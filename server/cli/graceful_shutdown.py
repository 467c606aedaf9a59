"""How the server stops.

The first SIGTERM, SIGINT or SIGQUIT drains it: it takes no new calls, says so at /readyz, and ends when the running
calls have ended or their time is over. The second one cancels the running calls. The third one does not even wait for
answers to be sent. `server.cli.graceful_shutdown` has the others.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import structlog
import uvicorn

from server.cli.http_protocol import drop_late
from server.services import Services
from server.telemetry.logs import reopen_log

log = structlog.stdlib.get_logger("darkroom.serving")

Handler = Callable[[int, FrameType | None], None]


class RecordedSignals:
    """The signals that do not stop the server, recorded until the event loop handles them: a handler may interrupt
    another log line."""

    def __init__(self) -> None:
        self._recorded: list[signal.Signals] = []

    def record(self, number: int, _frame: FrameType | None = None) -> None:
        """Record a signal, in its handler."""
        self._recorded.append(signal.Signals(number))

    def handle(self) -> None:
        """Handle the signals that were recorded so far, and log it."""
        while self._recorded:
            found = self._recorded.pop(0)
            if found in {signal.SIGUSR1, signal.SIGHUP}:
                reopen_log()
                log.info("the log's file was opened anew", signal=found.name)
            elif found == signal.SIGCONT:
                log.warning("the server goes on after a stop", signal=found.name)
            else:
                log.info("a signal without a meaning was ignored", signal=found.name)


@contextmanager
def signal_handlers(stop: Handler, signals: RecordedSignals) -> Iterator[None]:
    """Obey signals while this is entered, beside SIGTERM and SIGINT. One that the process was started to ignore, as
    `nohup` does, stays ignored."""
    handlers: dict[signal.Signals, Handler] = {
        signal.SIGQUIT: stop,
        signal.SIGHUP: stop if at_terminal() else signals.record,
        signal.SIGUSR1: signals.record,
        signal.SIGUSR2: signals.record,
        signal.SIGCONT: signals.record,
    }
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def at_terminal() -> bool:
    """Return whether the server was started at a terminal."""
    try:
        return os.isatty(0)
    except OSError:
        return False


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
