"""HTTP servers of tests, each in a thread of its own."""

import http.server
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Server = TypeVar("Server", bound=socketserver.BaseServer)


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """A handler that writes no lines to the tests' stderr."""

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Run the server until the block ends."""
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
