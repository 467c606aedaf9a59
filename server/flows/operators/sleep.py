"""Workers that give their device back to others, and take it again."""

import asyncio
from collections.abc import Sequence
from typing import Any

from server.accounts.audit import record_change
from server.accounts.db import Database
from server.backends.engine_host import EngineHost
from server.backends.engines import Engines
from server.backends.worker_life import Place
from server.errors import BadRequest, Conflict
from server.schemas.admin import SleepingWorker

RETRY_S = 5  # after which workers that still start may be up


class Sleeper:
    """Sends workers to sleep, and wakes them."""

    def __init__(self, engines: Engines, database: Database) -> None:
        self._engines = engines
        self._database = database

    async def sleep(self, names: Sequence[str] | None, place: Place, *, by: str) -> list[SleepingWorker]:
        """Let workers sleep as soon as their jobs have ended; by default all. Return once those without jobs have left
        their devices. Raises BadRequest and Conflict."""
        hosts = self._find(names)
        if place == "host" and (on_cpu := [host.name for host in hosts if host.device_choice != "cuda"]):
            message = (
                f"Invalid 'to': the weights of {', '.join(on_cpu)} are in the host's memory already; 'disk' frees it."
            )
            raise BadRequest(message, param="to")
        await self._record(by, "workers.sleep", hosts, to=place)
        await asyncio.gather(*(host.sleep(place) for host in hosts))
        return [_describe(host) for host in hosts]

    async def wake(self, names: Sequence[str] | None, *, by: str) -> list[SleepingWorker]:
        """Load what has left the devices, before a call needs it. Returns at once. Raises BadRequest and Conflict."""
        hosts = self._find(names)
        await self._record(by, "workers.wake", hosts)
        for host in hosts:
            host.wake()
        return [_describe(host) for host in hosts]

    def _find(self, names: Sequence[str] | None) -> list[EngineHost[Any, Any]]:
        engines = self._engines
        everyone: list[EngineHost[Any, Any]] = [*engines.image.workers, engines.chat, engines.classify]
        hosts = [host for host in everyone if host.can_sleep]
        if not hosts:
            raise Conflict("None of the workers is this server's own: a cluster's engines do not sleep.", RETRY_S)
        known = {host.name: host for host in hosts}
        for index, name in enumerate(names or ()):
            if name not in known:
                message = f"Invalid 'workers[{index}]': there is no worker '{name}' here. Workers: {', '.join(known)}."
                raise BadRequest(message, param=f"workers[{index}]")
        return [known[name] for name in dict.fromkeys(names or known)]

    async def _record(self, by: str, action: str, hosts: Sequence[EngineHost[Any, Any]], **details: str) -> None:
        names = ", ".join(host.name for host in hosts)
        await self._database.in_writer(record_change, self._database, by, action, names, **details)


def _describe(host: EngineHost[Any, Any]) -> SleepingWorker:
    status = host.status
    return SleepingWorker(
        id=host.name,
        kind=host.kind,
        state=status.sleep,
        place=status.place,
        sleeps_after_jobs=host.sleep_wanted is not None,
        jobs=host.jobs,
        wake_s=longest_wake_s(host),
    )


def longest_wake_s(host: EngineHost[Any, Any]) -> float:
    """Return the longest estimated time until one of the host's checkpoints is loaded again, in seconds; 0 if none has
    left the device."""
    return round(max((host.wake_s(spec) for spec in host.checkpoints), default=0.0), 1)
