"""A worker as a child process of the server, over a socket pair."""

import asyncio
import os
import pickle
import signal
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from pipelines.protocol.messages import (
    GROUP_NO_MEMORY_EXIT,
    HEADER,
    LOST_DEVICE_EXIT,
    LOST_GROUP_EXIT,
    DeviceChoice,
    FromWorker,
    ToWorker,
    frame,
)
from pipelines.protocol.python_command import python_command
from server.backends.transport import NO_MEMORY

log = structlog.stdlib.get_logger("darkroom.engine")

WORKER = "pipelines.worker"  # the module that a worker process runs
EXIT_LIMIT_S = 1.0  # from closing its socket until a worker that dies has ended
KILL_LIMIT_S = 30.0  # from a kill until a worker's memory is given back; a GPU that hangs may keep its process for ever
END_REASONS = {
    LOST_DEVICE_EXIT: "its device no longer answered",
    LOST_GROUP_EXIT: "a process of its group ended or hung",
    GROUP_NO_MEMORY_EXIT: NO_MEMORY,
}


class ChildProcess:
    """Satisfies `server.backends.transport.Launcher`. `options` are of the worker's command line; `environment` is
    added to the server's."""

    owns_worker = True

    def __init__(self, kind: str, options: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._kind = kind
        self._options = tuple(options)
        self._environment = dict(environment or {})

    async def open(self, device: DeviceChoice) -> "ChildTransport":
        """Spawn a worker. Raises OSError."""
        ours, theirs = socket.socketpair()
        command = python_command(WORKER, theirs.fileno(), self._kind, f"--device={device}", *self._options)
        environment = {**os.environ, **self._environment} if self._environment else None
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()], env=environment)
            return ChildTransport(process, *await asyncio.open_connection(sock=ours))
        except BaseException:
            ours.close()  # which ends a worker that was already spawned
            raise


class ChildTransport:
    """A worker's process. Satisfies `server.backends.transport.Transport`."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._kills = _kills_for_memory()

    @property
    def pid(self) -> int | None:
        """Return the id of the worker's process, None once it has ended."""
        return self._process.pid if self._process.returncode is None else None

    async def receive(self) -> Sequence[FromWorker]:
        """Wait for the next messages; there are none when the worker's life is over."""
        try:
            (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            messages: Sequence[FromWorker] = pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return ()
        return messages

    def send(self, messages: Sequence[ToWorker]) -> None:
        """Send without waiting. Messages that are sent after the end are lost."""
        self._writer.write(frame(messages))

    def kill(self) -> None:
        """Kill the process, if it lives. Its messages end here, also if the driver keeps it from ending."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._writer.close()

    async def end_reason(self) -> str:
        """Return the signal or status with which the process ended, for the log."""
        with suppress(TimeoutError):
            status = await asyncio.wait_for(self._process.wait(), EXIT_LIMIT_S)
            if status == -signal.SIGKILL and _kills_for_memory() > self._kills:
                return f"{signal.SIGKILL.name}: the kernel has ended a process for want of the host's memory"
            if status < 0:
                return signal.Signals(-status).name
            return END_REASONS.get(
                status, f"it ended with status {status}, and said no reason but on the server's stderr"
            )
        return "it closed its connection"

    async def close(self) -> None:
        """Kill the process, and wait until it has ended, unless it can't be ended."""
        self.kill()
        try:
            await asyncio.wait_for(self._process.wait(), KILL_LIMIT_S)
        except TimeoutError:
            log.error(  # noqa: TRY400
                "a killed worker does not end", pid=self.pid, remedy="its GPU or driver hangs: look for Xid in dmesg"
            )


def _kills_for_memory(file: Path = Path("/proc/vmstat")) -> int:
    """Return how many processes the kernel has ended since its start because memory was short, of this machine or of a
    control group; 0 where it does not count."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return sum(int(line.removeprefix("oom_kill ")) for line in lines if line.startswith("oom_kill "))
