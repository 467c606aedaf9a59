"""Maintenance: keep the home private, renew leases, void holds of dead servers, sweep files without a record."""

import asyncio
import fcntl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import structlog

from server.services import Services

log = structlog.stdlib.get_logger("darkroom.housekeeping")

SWEEP_EVERY_S = 900.0
WEBHOOKS_EVERY_S = 1.0
DAY_S = 86_400.0
OTHERS = 0o077  # the bits of a file's mode that are not its owner's


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


def make_private(home: Path) -> None:
    """Let nobody but the home's owner look into it, also if an earlier version or a volume made it readable."""
    if home.stat().st_mode & OTHERS:
        with suppress(OSError):
            home.chmod(0o700)
        if home.stat().st_mode & OTHERS:  # some file systems have no modes, and take a chmod without a word
            log.warning("the home can't be made private: others on this machine may read it", home=str(home))


async def recover_after_crash(services: Services) -> None:
    """Void the holds of dead servers. On SQLite every other owner is dead, since this server has locked the home."""
    if voided := await services.ledger.in_patient_writer(services.ledger.void_orphans):
        log.warning("voided the holds of a server that died", holds=voided)
    await services.call_store.in_patient_writer(services.call_store.fail_orphans)
    if finished := await services.response_store.in_patient_writer(services.response_store.finish_orphans):
        log.warning("ended the responses of a server that died", responses=finished)
    await _sweep_files(services)


async def run_maintenance(services: Services) -> None:
    """Until cancelled. Leases are renewed while files are swept: a sweep may take longer than a lease."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_every(services.settings.lease_s / 3, lambda: _renew_leases(services)))
        tasks.create_task(_every(SWEEP_EVERY_S, lambda: _sweep(services)))
        if services.settings.webhooks != "off":
            tasks.create_task(_every(WEBHOOKS_EVERY_S, services.webhooks.deliver_due))


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """A failure is logged and tried again: a full disk must not end the renewals."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:
            log.exception("maintenance failed")


async def _renew_leases(services: Services) -> None:
    """Renewals come first: whatever time the database was busy for, no hold of a running call is swept."""
    ledger, calls, responses = services.ledger, services.call_store, services.response_store
    await ledger.in_patient_writer(ledger.renew, services.active_calls.ids())
    await responses.in_patient_writer(responses.renew)
    await responses.in_patient_writer(responses.finish_orphans)
    if lapsed := await ledger.in_patient_writer(ledger.sweep, services.active_calls.ids()):
        log.warning("voided holds whose lease ran out", holds=lapsed)
    await calls.in_patient_writer(calls.fail_orphans, services.active_calls.ids())


async def _sweep(services: Services) -> None:
    await services.call_store.in_patient_writer(services.call_store.delete_expired)
    await services.webhooks.remove_orphans()
    await _sweep_files(services)


async def _sweep_files(services: Services) -> None:
    settings, ledger, responses = services.settings, services.ledger, services.response_store
    max_age_s = settings.responses_keep_days * DAY_S
    await responses.in_patient_writer(responses.delete_expired, max_age_s, settings.idempotency_s)
    days = settings.results_keep_days
    if days is not None and (expired := await ledger.in_patient_writer(ledger.expire_results, days * DAY_S)):
        log.info("expired results", results=expired)
    recorded = await ledger.in_reader(ledger.result_names) | await responses.in_reader(responses.file_names)
    removed = await services.storage.in_thread(services.storage.sweep, recorded, settings.result_grace_s)
    if removed:
        log.info("removed files without a record", files=removed)
