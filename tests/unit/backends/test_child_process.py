"""A worker's process that nothing ends: one that waits in the driver for a GPU that hangs."""

import asyncio
import socket
from dataclasses import dataclass

import pytest

from server.backends import child_process
from server.backends.child_process import ChildTransport


@dataclass
class Unkillable:
    """A process in uninterruptible sleep: its signals wait, as its parent does."""

    pid: int = 1
    returncode: int | None = None
    kills: int = 0

    def kill(self) -> None:
        self.kills += 1

    async def wait(self) -> int:
        return await asyncio.Future()


async def test_a_worker_that_can_not_be_killed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "KILL_LIMIT_S", 0.01)
    monkeypatch.setattr(child_process, "EXIT_LIMIT_S", 0.01)
    ours, theirs = socket.socketpair()
    with theirs:
        process = Unkillable()
        transport = ChildTransport(process, *await asyncio.open_connection(sock=ours))  # type: ignore[arg-type]
        waiting = asyncio.create_task(transport.receive())
        await asyncio.sleep(0)
        transport.kill()
        assert await asyncio.wait_for(waiting, 60) == (), "its jobs fail, as those of one that has died"
        assert await transport.end_reason() == "it closed its connection"
        await asyncio.wait_for(transport.close(), 60)
    assert process.kills == 2
