"""One decoder process, as the server sees it."""

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from pipelines.protocol.python_command import python_command
from server.backends.decoding.messages import ANSWER, MAX_ANSWER_BYTES, request_head

MODULE = "server.backends.decoding.worker"


class DecoderDied(Exception):
    """The process ended before its answer. `status` is as `subprocess` has it: below 0 it is a signal."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the decoder ended with status {status}")
        self.status = status


class Decoder:
    """A process that decodes one image at a time. After a `request` that raises, it must be killed. `close` comes
    last."""

    def __init__(self, process: asyncio.subprocess.Process, connection: socket.socket) -> None:
        self._process = process
        self._connection = connection

    @classmethod
    async def spawn(cls) -> Self:
        """Start a process. It is ready after a tenth of a second, which the first `request` waits for. Raises
        OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                descriptor = theirs.fileno()
                command = python_command(MODULE, descriptor)
                process = await asyncio.create_subprocess_exec(*command, pass_fds=[descriptor])
        except BaseException:
            ours.close()  # which ends a process that was already spawned
            raise
        ours.setblocking(False)
        return cls(process, ours)

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.returncode is None

    async def request(self, task: Mapping[str, Any], data: bytes) -> Mapping[str, Any]:
        """Send a task with an image file to the process, and return the answer. Raises DecoderDied."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._connection, request_head(task, len(data)))
            await loop.sock_sendall(self._connection, data)
            (length,) = ANSWER.unpack(await self._receive(ANSWER.size))
            answer: Mapping[str, Any] = json.loads(await self._receive(min(length, MAX_ANSWER_BYTES)))
        except (OSError, EOFError) as error:
            raise DecoderDied(await self._process.wait()) from error
        except ValueError as error:  # no decoder says what is not JSON
            raise DecoderDied(0) from error
        return answer

    async def kill(self) -> None:
        """Kill the process, and wait until it has ended and its memory is free. A `request` that waits raises
        DecoderDied."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def close(self) -> None:
        """Close the connection. No `request` may be waiting."""
        self._connection.close()

    async def _receive(self, size_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < size_bytes:
            part = await asyncio.get_running_loop().sock_recv(self._connection, size_bytes - len(received))
            if not part:
                raise EOFError
            received += part
        return bytes(received)
