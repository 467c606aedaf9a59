"""An engine as a Ray actor: a `SharedEngine` whose worker is a child process on the same machine.

A method is never run twice: the server tells its client which jobs were lost with an actor or with its connection.
"""

import os
import pickle
from collections.abc import AsyncIterator
from typing import Any

import ray

from server.backends.child_process import ChildProcess
from server.backends.cluster.roster import Engine
from server.backends.cluster.shared_engine import LinkMessages, SharedEngine
from server.backends.worker_heap import heap_on_cpu
from server.settings import Settings

MAX_CALLS = 1000  # at once: each server has one that lasts
OPTIONS: dict[str, Any] = {
    "lifetime": "detached",
    "max_restarts": 0,  # the supervisor makes a new one, also where its node has come back
    "max_task_retries": 0,  # a job is never drawn twice
    "max_concurrency": MAX_CALLS,
    "num_cpus": 0,
}


class EngineActor:
    """The Ray actor of an engine, one for each GPU and kind. Its settings are those of its machine's environment."""

    def __init__(self, engine: Engine) -> None:
        settings = Settings()
        environment = heap_on_cpu() if engine.kind == "image" and engine.device == "cpu" else {}
        launcher = ChildProcess(engine.kind, _options(engine, settings), environment)
        limit = settings.chat_max_queue if engine.kind == "chat" else settings.max_queue
        self._engine = SharedEngine(launcher, engine.device, limit)

    async def link(self, name: str) -> AsyncIterator[LinkMessages]:
        """Yield the messages for a server: see `SharedEngine.link`."""
        async for messages in self._engine.link(name):
            yield messages

    async def send(self, name: str, messages: bytes) -> bool:
        """Take a server's messages, pickled with their pixels by `transport.pack`. Returns False if the server has no
        link any more."""
        return self._engine.send(name, pickle.loads(messages) if messages else ())

    async def unlink(self, name: str) -> None:
        """End a server's link: see `SharedEngine.unlink`."""
        self._engine.unlink(name)

    async def kill(self, name: str) -> None:
        """Kill a worker that is stuck: see `SharedEngine.kill`."""
        self._engine.kill(name)

    async def leave(self) -> None:
        """End when the jobs that run have ended."""
        await self._engine.leave()
        await self._engine.stop()

    async def state(self) -> dict[str, Any]:
        """Describe the engine for `darkroom cluster status`."""
        engine = self._engine
        return {
            "device": engine.device,
            "ready": engine.device is not None,
            "node": ray.get_runtime_context().get_node_id(),
            "jobs": engine.jobs,
            "checkpoints": engine.loaded,
            "servers": engine.links,
            "servers_given_up": engine.given_up,
            "leaving": engine.leaving,
            "pid": os.getpid(),
            "worker_pid": engine.pid,
            "workers_started": engine.starts,
        }


def _options(engine: Engine, settings: Settings) -> list[str]:
    share = [f"--chat-cache-share={settings.chat_cache_share:g}"]
    if engine.kind != "image":
        return share if engine.kind == "chat" else []
    limits = {"--device-gib": settings.device_memory_gib, "--host-gib": settings.host_memory_gib}
    options = [f"{name}={value:g}" for name, value in limits.items() if value is not None]
    return [*options, *share, f"--image-workers={engine.beside}", f"--kernel-cache={settings.home / 'kernels'}"]
