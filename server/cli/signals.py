"""What each signal means to the server. None ends it without a drain, but SIGKILL.

| signal | meaning |
| --- | --- |
| SIGTERM, SIGINT, SIGQUIT | drain; again: cancel what runs; again: end at once |
| SIGHUP | as SIGTERM if the server was started at a terminal, which has gone; else as SIGUSR1 |
| SIGUSR1 | open the log's file anew, for a log rotator |
| SIGUSR2 | nothing |
| SIGTSTP, SIGCONT | the process is stopped, and goes on |
| SIGPIPE | nothing: whoever read the server's output has gone |
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import structlog

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
