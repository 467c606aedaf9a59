"""An engine as a Ray actor: a `SharedEngine` whose worker is a child process on the same machine.

Ray places it, and makes it again when it or its node has died. A method is never run twice: the server tells its client
which jobs were lost with an actor or with its connection.
"""

import asyncio
import fcntl
import os
import pickle
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import ray

from pipelines.checkpoints.memory.shares import host_memory_bytes
from server.backends.child_process import ChildProcess
from server.backends.cluster.engines_file import Engine
from server.backends.cluster.node_properties import NodeProperties, describe_node
from server.backends.cluster.shared_engine import LinkMessages, SharedEngine
from server.backends.engine_layout import heap_on_cpu
from server.backends.gpus import list_gpus
from server.settings import Settings

Compare = Callable[[Settings], None]  # this node's weights with the servers'; raises StartError

COMPARE_S = 4.0  # that a server waits for its answer; weights may be read for minutes
OF_HOST, OF_GPU = 0.5, 0.8  # of their memory, for weights
OPTIONS: dict[str, Any] = {
    "lifetime": "detached",
    "max_restarts": -1,
    "max_task_retries": 0,  # a job is never drawn twice
    "max_concurrency": 1000,  # calls at once: each server has one that lasts
    "num_cpus": 0,
    "scheduling_strategy": "SPREAD",
}


@dataclass(frozen=True, slots=True)
class Offer:
    """An engine and its memory for weights, as a server gets to know it, or the reason why it can't use it."""

    spec: Engine
    room_bytes: int
    problem: str | None


class EngineActor:
    """The Ray actor of an engine. Its settings are those of its node's environment. `engines` is the hash of the
    cluster.toml that it is of."""

    def __init__(self, engine: Engine, engines: str, compare: Compare) -> None:
        settings = self._settings = Settings()
        self._spec = engine
        self._engines = engines
        self._beside = engine.beside or _gpus_of_node()
        self._room_bytes = _room_bytes(engine, self._beside, settings.device_memory_gib)
        self._compare = compare
        self._comparison: asyncio.Future[None] | None = None
        environment = heap_on_cpu() if engine.kind == "image" and engine.device == "cpu" else {}
        launcher = ChildProcess(engine.kind, self._options(), environment)
        limit = settings.chat_max_queue if engine.kind == "chat" else settings.max_queue
        self._engine = SharedEngine(launcher, engine.device, limit)

    async def link(self, name: str, server: NodeProperties) -> AsyncIterator[LinkMessages]:
        """Yield the messages for a server: see `SharedEngine.link`. A server that this node does not fit gets the
        reason alone."""
        if (problem := await self._find_problem(server)) is not None:
            yield problem
            return
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
        """End the worker when the jobs that run have ended."""
        await self._engine.leave()
        await self._engine.stop()

    async def offer(self, server: NodeProperties) -> Offer:
        """Return what a server with these properties may expect of the engine."""
        return Offer(self._spec, self._room_bytes, await self._find_problem(server))

    async def describe(self) -> dict[str, Any]:
        """Describe the engine for `darkroom cluster status`."""
        engine = self._engine
        return {
            "state": "leaving" if engine.leaving else "ready" if engine.device is not None else "starting",
            "node": ray.get_runtime_context().get_node_id(),
            "device": engine.device,
            "jobs": engine.jobs,
            "checkpoints": engine.loaded,
            "servers": engine.links,
            "servers_given_up": engine.given_up,
            "pid": os.getpid(),
            "worker_pid": engine.pid,
            "workers_started": engine.starts,
        }

    async def _find_problem(self, server: NodeProperties) -> str | None:
        """Return why this node may not serve a server like that; None if it may. What has failed is tried again."""
        try:
            if differences := describe_node(self._settings, self._engines).differences(server):
                return f"its node is not like this server (here is that node): {'; '.join(differences)}"
            if self._comparison is None or (self._comparison.done() and self._comparison.exception() is not None):
                self._comparison = asyncio.ensure_future(asyncio.to_thread(self._compare_in_turn))
            async with asyncio.timeout(COMPARE_S):
                await asyncio.shield(self._comparison)
        except TimeoutError:
            return "its node still compares its weights"
        except Exception as error:  # also a database that does not answer
            return str(error).partition("\n")[0]
        return None

    def _compare_in_turn(self) -> None:
        """Compare the node's weights. Its engines do it one after another: what the first has read, the next know."""
        self._settings.home.mkdir(parents=True, exist_ok=True)
        with (self._settings.home / "comparing").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._compare(self._settings)

    def _options(self) -> list[str]:
        engine, settings = self._spec, self._settings
        share = [f"--chat-cache-share={settings.chat_cache_share:g}"]
        if engine.kind != "image":
            return share if engine.kind == "chat" else []
        limits = {"--device-gib": settings.device_memory_gib, "--host-gib": settings.host_memory_gib}
        options = [f"{name}={value:g}" for name, value in limits.items() if value is not None]
        return [*options, *share, f"--image-workers={self._beside}", f"--kernel-cache={settings.home / 'kernels'}"]


def _room_bytes(engine: Engine, beside: int, device_gib: float | None) -> int:
    if device_gib is not None:
        return int(device_gib * 2**30)
    if engine.device == "cpu":
        return int(host_memory_bytes() * OF_HOST / beside)
    gpus = list_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    return int(min((gpu.total_bytes for gpu in gpus if gpu.problem is None), default=0) * OF_GPU)


def _gpus_of_node() -> int:
    own = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray has no types for it
    return max(1, *(int(node["Resources"].get("GPU", 0)) for node in nodes if node["NodeID"] == own))
