"""What each process does first: imports without the garbage collector, and its own way with signals."""

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager

LEFT_TO_SERVER = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


@contextmanager
def importing() -> Iterator[None]:
    """Pause the collector during imports, and leave what they made out of later collections. All of it stays, and to
    look through half a million objects again and again is a quarter of the time that the libraries take."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def leave_signals_to_server() -> None:
    """Ignore the signals that the server obeys: it drains first, and then ends its other processes."""
    for each in LEFT_TO_SERVER:
        signal.signal(each, signal.SIG_IGN)
