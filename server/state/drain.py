"""Whether the server still takes new calls."""

from server.errors import ServerStopping


class Drain:
    """Open until the server is told to stop; then running calls go on and new ones are refused."""

    def __init__(self) -> None:
        self.draining = False

    def check_open(self) -> None:
        """Check that the server takes new calls. Raises ServerStopping while draining."""
        if self.draining:
            raise ServerStopping("The server is about to stop and takes no new calls. Try again in a moment.", 5)
