"""What each process does first and last: imports without the garbage collector, its own way with signals, and the
reason with which it ends itself."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

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


LAST_WORDS_S: Final = 1.0  # for a reason to arrive, where the reader may hang
_listeners: list[Callable[[str], None]] = []


def before_exit(tell: Callable[[str], None]) -> None:
    """Have `tell` called with the reason when this process ends itself, on a thread of its own."""
    _listeners.append(tell)


def end_process(status: int, reason: str) -> NoReturn:
    """End this process at once, from any thread, and say why: on stderr, and to those that `before_exit` has named."""
    print(reason, file=sys.stderr, flush=True)
    for tell in _listeners:
        telling = threading.Thread(target=tell, args=(reason,), daemon=True)
        telling.start()
        telling.join(LAST_WORDS_S)
    os._exit(status)
