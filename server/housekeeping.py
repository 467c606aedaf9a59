"""Maintenance: keep the home private, renew leases, void holds of dead servers, sweep records and files."""

import asyncio
import fcntl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import structlog

from server.accounts.db import PAGE
from server.accounts.store import Store
from server.backends.engines import cluster_member
from server.clock import DAY_S
from server.errors import ApiError, StartError
from server.services import Services
from server.settings import Settings

if TYPE_CHECKING:
    from server.backends.cluster.ray_cluster import RayCluster

log = structlog.stdlib.get_logger("darkroom.housekeeping")

SWEEP_EVERY_S = 900.0
WEBHOOKS_EVERY_S = 1.0
CLUSTER_EVERY_S = 3.0
THUMBNAIL_DAYS = 7
OTHERS = 0o077  # the bits of a file's mode that are not its owner's


class InUse(StartError):
    """Another server runs on this home, or on this SQLite file."""


def lock_home(home: Path) -> IO[str]:
    """Lock the home until the file is closed or the process dies. Raises InUse."""
    message = f"Another Darkroom server already runs on {home}. Stop it, or set DARKROOM_HOME to another folder."
    return _lock_file(home / "lock", message)


def _lock_file(path: Path, message: str) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise InUse(message) from error
    return lock


def make_private(home: Path) -> None:
    """Let nobody but the home's owner look into it, also if an earlier version or a volume made it readable."""
    if home.stat().st_mode & OTHERS:
        with suppress(OSError):
            home.chmod(0o700)
        if home.stat().st_mode & OTHERS:  # some file systems have no modes, and take a chmod without a word
            log.warning("the home can't be made private: others on this machine may read it", home=str(home))


def lock_database(settings: Settings) -> IO[str] | None:
    """Lock the SQLite file until this is closed or the process dies: its home is not the only place from which a server
    may use it. None for PostgreSQL. Raises InUse."""
    url = settings.database_url
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    path = Path(url.database)
    message = (
        f"Another Darkroom server already uses the database {path}. A SQLite file has one server: stop the other one, "
        "or use PostgreSQL (docs/guides/cluster.md)."
    )
    return _lock_file(path.with_name(f"{path.name}.server-lock"), message)


async def recover_after_crash(services: Services) -> None:
    """Register this server with the others, and void or fail the calls that dead servers left."""
    stores = services.stores
    others = await stores.gateways.retry_in_writer(stores.gateways.register)
    if others and None in {services.settings.gateway_url, *(other.url for other in others)}:
        log.warning(
            "other servers use this database: set DARKROOM_GATEWAY_URL for each of them (docs/guides/cluster.md)"
        )
    if voided := await stores.ledger.retry_in_writer(stores.ledger.void_orphans):
        log.warning("voided the holds of a server that died", holds=voided)
    await stores.calls.retry_in_writer(stores.calls.fail_orphans)
    if finished := await stores.responses.retry_in_writer(stores.responses.finish_orphans):
        log.warning("ended the responses of a server that died", responses=finished)
    if await stores.gateways.in_reader(stores.gateways.runs_maintenance):
        await stores.files.in_thread(services.operations.storage_sweep.claim)


async def unregister_gateway(services: Services) -> None:
    """Leave the other servers at the end, so that they need not wait until this one's lease has run out."""
    try:
        await services.stores.gateways.in_writer(services.stores.gateways.leave)
    except ApiError:  # the database is away
        log.exception("the other servers were not told that this one stops")


async def run_maintenance(services: Services) -> None:
    """Run maintenance until cancelled. Leases are renewed while files are swept: a sweep may take longer than a
    lease."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_repeat_every(services.settings.lease_s / 3, lambda: _renew_leases(services)))
        if services.cluster is not None:
            settle = services.cluster.member.settle
            tasks.create_task(_repeat_every(services.settings.lease_s / 3, settle, at_once=True))
        tasks.create_task(_repeat_every(SWEEP_EVERY_S, lambda: _sweep(services)))
        if services.settings.webhooks != "off":
            tasks.create_task(_repeat_every(WEBHOOKS_EVERY_S, services.images.webhooks.deliver_due))


async def follow_cluster(services: Services, cluster: "RayCluster") -> None:
    """Keep the image engines those of the Ray cluster, until cancelled."""
    await _repeat_every(CLUSTER_EVERY_S, lambda: _update_engines(services, cluster))


async def _update_engines(services: Services, cluster: "RayCluster") -> None:
    offers = await asyncio.to_thread(cluster.find_engines)
    names = [offer.spec.name for offer in offers]
    worker_pool = services.engines.image
    if not names or set(names) == {host.name for host in worker_pool.workers}:
        return
    if services.served.catalog.lock.locked():  # a swap: after it the engines may be others again
        return
    async with services.served.catalog.lock:
        members = [cluster_member(services.settings, cluster, offer) for offer in offers]
        if await worker_pool.change_members(members, services.served.catalog.current):
            log.info("the cluster's engines have changed", engines=names)


async def _repeat_every(seconds: float, work: Callable[[], Awaitable[object]], *, at_once: bool = False) -> None:
    """Repeat work for ever, with pauses. A failure is logged and the work tried again: a full disk must not end the
    renewals."""
    pause_s = 0 if at_once else seconds
    while True:
        await asyncio.sleep(pause_s)
        pause_s = seconds
        try:
            await work()
        except Exception:
            log.exception("maintenance failed")


async def _renew_leases(services: Services) -> None:
    """Renew leases, then sweep: however long the database was busy, no hold of a running call is swept."""
    stores, running = services.stores, services.running.calls
    gateways, ledger, calls, responses = stores.gateways, stores.ledger, stores.calls, stores.responses
    if not await gateways.retry_in_writer(gateways.renew):
        log.error("this server had not renewed its lease in time: others have given up what it ran")
    await ledger.retry_in_writer(ledger.renew, running.ids())
    if await gateways.in_reader(gateways.runs_maintenance):
        if dead := await gateways.retry_in_writer(gateways.remove_dead):
            log.warning("servers have died", servers=dead)
        await ledger.retry_in_writer(ledger.void_orphans)
        await responses.retry_in_writer(responses.finish_orphans)
        if lapsed := await ledger.retry_in_writer(ledger.sweep, running.ids()):
            log.warning("voided holds whose lease ran out", holds=lapsed)
        if stores.claims is not None:
            await stores.claims.retry_in_writer(stores.claims.delete_ended)
    await calls.retry_in_writer(calls.fail_orphans, running.ids())
    await _end_lost(services)


async def _end_lost(services: Services) -> None:
    """End the claims and responses that ended here while the database was away, or when it broke off. The records are
    read before the running ones are listed: so any that begin meanwhile are known."""
    responses, claims, limiter = services.stores.responses, services.stores.claims, services.admission.limiter
    if claims is not None and (lost := await claims.in_reader(claims.running_here) - limiter.claimed_ids):
        await claims.retry_in_writer(claims.end, *lost)
    await responses.retry_in_writer(responses.finish_unrecorded)
    if lost := await responses.in_reader(responses.running_here) - limiter.claimed_ids - responses.unrecorded_ids:
        await responses.retry_in_writer(responses.finish_lost, lost)
        log.warning("ended responses whose end was not recorded", responses=len(lost))


async def _sweep(services: Services) -> None:
    """Sweep expired records and files. Thumbnails are each server's own. Of several servers one does the rest."""
    await services.images.thumbnails.sweep(THUMBNAIL_DAYS * DAY_S)
    settings, stores = services.settings, services.stores
    gateways, calls, call_log = stores.gateways, stores.calls, stores.call_log
    if not await gateways.in_reader(gateways.runs_maintenance):
        return
    await _in_pages(calls, calls.delete_expired)
    await _in_pages(call_log, partial(call_log.delete_older, settings.calls_keep_days * DAY_S))
    if not settings.keep_prompts:
        await _in_pages(call_log, call_log.delete_prompts)
        await _in_pages(stores.results, stores.results.delete_origins)
    await services.images.webhooks.remove_orphans()
    responses, conversations, max_age_s = stores.responses, stores.conversations, settings.responses_keep_days * DAY_S
    await _in_pages(responses, partial(responses.delete_expired, max_age_s, settings.idempotency_s))
    await _in_pages(stores.batches, partial(stores.batches.delete_older, max_age_s))
    await _in_pages(conversations, partial(conversations.delete_expired, max_age_s))
    if any(each.samples for each in services.telemetry.metrics.requests.collect()):  # nobody has come yet: no hurry
        await stores.files.in_thread(services.operations.storage_sweep.run)


async def _in_pages(store: Store, change: Callable[[], int]) -> int:
    """Repeat a change while there is more; returns how many rows it has changed. Others write between two pages."""
    total = 0
    while True:
        changed = await store.retry_in_writer(change)
        total += changed
        if changed < PAGE:
            return total
