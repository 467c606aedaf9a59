"""Whether an answer has arrived whole, as far as its connection shows it.

That its bytes were handed to the kernel says nothing. An answer has arrived if the other side has acknowledged all of
it, and has not reset the connection at once: whoever closes a connection without having read all that came resets it.
The next request on a connection, and its orderly end, show at once that the answer before has arrived.
"""

import asyncio
import fcntl
import os
import socket
import struct
import termios
from contextlib import suppress

RESET_WITHIN_S = 2.0  # after that, a reset is how some proxies and balancers end idle connections
CLOSING_S = 10.0  # how long an answer on a connection that this server has closed may take to be acknowledged
FIRST_LOOK_S, LONGEST_LOOK_S = 0.005, 0.25


class AnswerArrival:
    """The way of one answer."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._known: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._expected = False
        self._closing: socket.socket | None = None  # the connection, after uvicorn has closed its own

    def expect(self) -> None:
        """Prepare for `is_whole`, before the answer is sent."""
        self._expected = True

    def settle(self, whole: bool) -> None:
        """Record that the answer has arrived whole, or can't any more, unless that is known."""
        if not self._known.done():
            self._known.set_result(whole)

    async def is_whole(self) -> bool:
        """Return whether the answer has arrived whole, once that is known. To be asked when all of it was sent."""
        try:
            look_s = FIRST_LOOK_S
            while not self._known.done() and self._unacknowledged():
                await asyncio.wait({self._known}, timeout=look_s)
                look_s = min(2 * look_s, LONGEST_LOOK_S)
            await asyncio.wait({self._known}, timeout=RESET_WITHIN_S)
            self.settle(True)
            return self._known.result()
        finally:
            self._close()

    def follow_closing(self) -> None:
        """Go on to look after an answer whose connection this server, or its client, has closed in order. A reset may
        still come."""
        connection = self._transport.get_extra_info("socket")
        if not self._expected or self._known.done() or connection is None:
            return
        try:
            self._closing = socket.socket(fileno=os.dup(connection.fileno()))
            self._closing.setblocking(False)
            self._closing.shutdown(socket.SHUT_WR)  # else the copy would keep it open
        except OSError:
            self.settle(False)
            self._close()
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(self._closing, self._read)
        loop.call_later(CLOSING_S, self._give_up)

    def _give_up(self) -> None:
        self.settle(not self._unacknowledged())
        self._close()

    def _read(self) -> None:
        """Read the end of the connection; what else its client sends is thrown away."""
        if self._closing is None:
            return
        try:
            if self._closing.recv(65_536):
                return
            if not self._unacknowledged():
                self.settle(True)
        except BlockingIOError:
            return
        except OSError:
            self.settle(False)
        asyncio.get_running_loop().remove_reader(self._closing)

    def _unacknowledged(self) -> int:
        """Return how many bytes the other side has not acknowledged. 0 where the system does not say it."""
        waiting = self._transport.get_write_buffer_size()
        connection = self._closing or self._transport.get_extra_info("socket")
        with suppress(OSError, ValueError, AttributeError):  # it may be closed, or no socket
            waiting += struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0]
        return waiting

    def _close(self) -> None:
        if self._closing is not None:
            with suppress(ValueError):
                asyncio.get_running_loop().remove_reader(self._closing)
            self._closing.close()
            self._closing = None
