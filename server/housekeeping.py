"""Maintenance: renew leases, void holds of dead servers, sweep files without a record."""

import asyncio
import fcntl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO

import structlog

from server.services import Services

log = structlog.stdlib.get_logger("darkroom.housekeeping")

SWEEP_EVERY_S = 900.0
DAY_S = 86_400.0


class HomeInUse(Exception):
    """Another server runs on this home."""


def lock_home(home: Path) -> IO[str]:
    """Lock the home until the file is closed or the process dies. Raises HomeInUse."""
    home.mkdir(parents=True, exist_ok=True)
    lock = (home / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        message = f"Another Darkroom server already runs on {home}. Stop it, or set DARKROOM_HOME to another folder."
        raise HomeInUse(message) from error
    return lock


def recover_after_crash(services: Services) -> None:
    """Void the holds of dead servers. On SQLite every other owner is dead, since this server has locked the home."""
    if voided := services.ledger.void_orphans():
        log.warning("voided the holds of a server that died", holds=voided)
    services.call_store.fail_orphans()
    if finished := services.response_store.finish_orphans():
        log.warning("ended the responses of a server that died", responses=finished)
    _sweep_files(services)


async def run_maintenance(services: Services) -> None:
    """Until cancelled. Leases are renewed while files are swept: a sweep may take longer than a lease."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_every(services.settings.lease_s / 3, lambda: _renew_leases(services)))
        tasks.create_task(_every(SWEEP_EVERY_S, lambda: asyncio.to_thread(_sweep, services)))


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """A failure is logged and tried again: a full disk must not end the renewals."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:
            log.exception("maintenance failed")


async def _renew_leases(services: Services) -> None:
    await asyncio.to_thread(services.ledger.renew, services.active_calls.ids())
    await asyncio.to_thread(services.response_store.renew)
    await asyncio.to_thread(services.response_store.finish_orphans)
    if lapsed := await asyncio.to_thread(services.ledger.sweep):
        log.warning("voided holds whose lease ran out", holds=lapsed)
    await asyncio.to_thread(services.call_store.fail_orphans, services.active_calls.ids())


def _sweep(services: Services) -> None:
    services.call_store.delete_expired()
    _sweep_files(services)


def _sweep_files(services: Services) -> None:
    settings = services.settings
    services.response_store.delete_expired(settings.responses_keep_days * DAY_S, settings.idempotency_s)
    days = settings.results_keep_days
    if days is not None and (expired := services.ledger.expire_results(days * DAY_S)):
        log.info("expired results", results=expired)
    recorded = services.ledger.result_names() | services.response_store.file_names()
    removed = services.storage.sweep(recorded, settings.result_grace_s)
    if removed:
        log.info("removed files without a record", files=removed)
