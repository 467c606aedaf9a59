"""Signals in the processes beside the server: a terminal or a service manager sends them to all of a group."""

import signal

LEFT_TO_SERVER = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def leave_signals_to_server() -> None:
    """Ignore the signals that the server obeys: it drains first, and then ends its other processes."""
    for each in LEFT_TO_SERVER:
        signal.signal(each, signal.SIG_IGN)
