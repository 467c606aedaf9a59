"""What a running server does on its own: keep its leases, void lost holds, sweep files that no record names."""

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
    """Make the home ours until the file is closed or the process dies, however it dies. Raises HomeInUse."""
    home.mkdir(parents=True, exist_ok=True)
    lock = (home / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        message = f"Another Darkroom server already runs on {home}. Stop it, or set DARKROOM_HOME to another folder."
        raise HomeInUse(message) from error
    return lock


def settle_the_past(services: Services) -> None:
    """Void what a killed server left held: with the home locked, nobody else can own a hold."""
    if voided := services.ledger.void_orphans():
        log.warning("voided the holds of a server that died", holds=voided)
    services.book.fail_orphans()
    if settled := services.responses.settle_orphans():
        log.warning("settled the responses of a server that died", responses=settled)
    _sweep_files(services)


async def keep_house(services: Services) -> None:
    """Until cancelled. Leases are renewed while files are swept: that may take longer than a lease."""
    async with asyncio.TaskGroup() as chores:
        chores.create_task(_every(services.settings.lease_s / 3, lambda: _settle(services)))
        chores.create_task(_every(SWEEP_EVERY_S, lambda: asyncio.to_thread(_sweep, services)))


async def _every(seconds: float, chore: Callable[[], Awaitable[None]]) -> None:
    """A failure is logged and tried again: a full disk must not end the renewals."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await chore()
        except Exception:
            log.exception("housekeeping failed")


async def _settle(services: Services) -> None:
    await asyncio.to_thread(services.ledger.renew, services.calls.ids())
    await asyncio.to_thread(services.responses.renew)
    await asyncio.to_thread(services.responses.settle_orphans)
    if lapsed := await asyncio.to_thread(services.ledger.sweep):
        log.warning("voided holds whose lease ran out", holds=lapsed)
    await asyncio.to_thread(services.book.fail_orphans, services.calls.ids())


def _sweep(services: Services) -> None:
    services.book.forget_old()
    _sweep_files(services)


def _sweep_files(services: Services) -> None:
    services.responses.forget_old(services.settings.responses_keep_days * DAY_S, services.settings.idempotency_s)
    days = services.settings.results_keep_days
    if days is not None and (old := services.ledger.give_up_results(days * DAY_S)):
        log.info("gave up old results", results=old)
    known = services.ledger.result_names() | services.responses.picture_names()
    removed = services.storage.sweep(known, services.settings.result_grace_s)
    if removed:
        log.info("removed files that no record names", files=removed)
