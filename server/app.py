"""The server, built from its settings. Nothing in this package is global: two apps can live in one process."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from pipelines.catalog.images import Catalog, load_catalog
from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from pipelines.protocol.classify import ClassifyEvent, ClassifyJob
from pipelines.protocol.images import Event, ImageJob
from server.accounts.calls import CallBook
from server.accounts.db import Database
from server.accounts.ledger import Ledger
from server.accounts.responses import ResponseBook
from server.backends.engine_host import EngineHost
from server.backends.storage import Storage
from server.backends.upstream import Upstreams
from server.errors import ApiError, BadRequest, MethodNotAllowed, NotFound
from server.housekeeping import keep_house, lock_home, settle_the_past
from server.http.body_limit import BodyLimit
from server.http.observability import Observe
from server.moderation.policy import load_policy
from server.routes import admin, chat, console, health, images, models, responses, unsupported
from server.routes import files as results
from server.services import Services
from server.settings import Settings
from server.state.active_calls import RunningCalls
from server.state.active_responses import LiveResponses
from server.state.image_backlog import Backlog
from server.telemetry.crash_points import Faults
from server.telemetry.metrics import Metrics

log = structlog.stdlib.get_logger("darkroom.serving")

MAX_BODY_BYTES = 1024**3  # 16 references of 50 MB, as base64
MAX_BODY_BELOW = {"/v1/chat/": 256 * 1024**2}  # what goes through chats is read as a whole, and more than once
EXPOSED_HEADERS = [
    "x-request-id",
    "retry-after",
    "x-darkroom-ignored",
    "x-darkroom-job",
    "idempotency-replayed",
    "openai-processing-ms",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
]


def create_app(settings: Settings, on_ready: Callable[[Services], None] = lambda _: None) -> FastAPI:
    """The ASGI app. Raises CatalogError and StartError. `on_ready` is called once, when all workers are ready."""
    services = build_services(settings, load_catalog(settings.model_configs, settings.weights))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with lock_home(settings.home):
            await asyncio.to_thread(services.database.migrate)
            await asyncio.to_thread(settle_the_past, services)
            async with AsyncExitStack() as ends:
                _leave_ends(services, ends)
                await services.images.start()
                if services.catalog.chat.checkpoints:
                    await services.chat.start()
                if services.policy.classifiers:
                    await services.classifiers.start()
                chores = [
                    asyncio.create_task(keep_house(services), name="housekeeping"),
                    asyncio.create_task(_announce(services, on_ready), name="announcing"),
                ]
                ends.push_async_callback(_end, chores)
                yield

    # no pages of docs: their scripts would come from the internet
    app = FastAPI(title="Darkroom", lifespan=lifespan, redirect_slashes=False, docs_url=None, redoc_url=None)
    app.state.services = services
    for module in (images, chat, responses, models, results, health, console, admin, unsupported):
        app.include_router(module.router)
    _handle_errors(app)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES, below=MAX_BODY_BELOW)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=["*"],
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=EXPOSED_HEADERS,
    )
    app.add_middleware(Observe, metrics=services.metrics)
    return app


def build_services(settings: Settings, catalog: Catalog) -> Services:
    """The parts of a server, not yet started. Raises StartError."""
    policy = load_policy(settings.moderation, settings.weights, catalog.groups)
    database = Database(settings.database_url)
    owner = uuid.uuid4().hex
    faults = Faults(settings.crash_at)
    preloaded = catalog.checkpoints if settings.preload else ()
    limits = {"--device-gib": settings.device_memory_gib, "--host-gib": settings.host_memory_gib}
    options = [f"{name}={value:g}" for name, value in limits.items() if value is not None]
    host = EngineHost[ImageJob, Event](
        "image", preloaded, settings.max_queue, silence_s=settings.worker_silence_s, options=options
    )
    chat_host = _chat_host(settings, catalog)
    classifiers = EngineHost[ClassifyJob, ClassifyEvent]("classify", policy.checkpoints, settings.max_queue)
    metrics = Metrics()
    metrics.watch("image", jobs=lambda: host.jobs, restarts=lambda: host.restarts)
    metrics.watch("chat", jobs=lambda: chat_host.jobs, restarts=lambda: chat_host.restarts)
    metrics.watch("classify", jobs=lambda: classifiers.jobs, restarts=lambda: classifiers.restarts)
    return Services(
        settings=settings,
        catalog=catalog,
        database=database,
        ledger=Ledger(database, owner=owner, lease_s=settings.lease_s, reach=faults.reach),
        book=CallBook(database, owner=owner, keep_s=settings.idempotency_s),
        storage=Storage(settings.results),
        images=host,
        chat=chat_host,
        upstreams=Upstreams(catalog.chat.upstreams, os.environ, settings.job_time_limit_s),
        classifiers=classifiers,
        policy=policy,
        calls=RunningCalls(),
        backlog=Backlog(settings.max_queue, settings.max_queue_s, host.warmed_unit_s),
        responses=ResponseBook(database, owner, settings.lease_s),
        live=LiveResponses(),
        metrics=metrics,
        faults=faults,
    )


def _chat_host(settings: Settings, catalog: Catalog) -> EngineHost[ChatJob | CountJob, ChatEvent]:
    specs = catalog.chat.checkpoints
    at_once = max((spec.max_batch for spec in specs), default=1)
    preloaded = specs if settings.preload else ()
    return EngineHost("chat", preloaded, settings.chat_max_queue, at_once, settings.worker_silence_s)


def _leave_ends(services: Services, ends: AsyncExitStack) -> None:
    """How each part stops, whatever becomes of the others. The last named is the first to go."""
    ends.callback(services.database.dispose)
    ends.push_async_callback(services.upstreams.close)
    ends.push_async_callback(services.loose_ends.tie_up)
    ends.push_async_callback(services.classifiers.stop)
    ends.push_async_callback(services.chat.stop)
    ends.push_async_callback(services.images.stop)
    ends.push_async_callback(services.calls.stop)
    ends.push_async_callback(services.live.stop)


async def _end(chores: Sequence[asyncio.Task[None]]) -> None:
    """Cancel them, and say of which that had failed before."""
    for chore in chores:
        chore.cancel()
    for chore, came in zip(chores, await asyncio.gather(*chores, return_exceptions=True), strict=True):
        if isinstance(came, Exception):  # a cancellation is none
            log.error("a chore had failed", chore=chore.get_name(), exc_info=came)


async def _announce(services: Services, on_ready: Callable[[Services], None]) -> None:
    await services.images.wait_ready()
    if services.catalog.chat.checkpoints:
        await services.chat.wait_ready()
    if services.policy.classifiers:
        await services.classifiers.wait_ready()
    on_ready(services)


def _handle_errors(app: FastAPI) -> None:
    """Every error of the framework becomes one of ours; anything else is caught by Observe."""

    async def answer(_: Request, error: Exception) -> Response:
        known = error if isinstance(error, ApiError) else _translate(error)
        return JSONResponse(known.body(), status_code=known.status, headers=known.headers)

    handler: Callable[[Request, Exception], Awaitable[Response]] = answer
    for kind in (ApiError, HTTPException, RequestValidationError, ClientDisconnect):
        app.add_exception_handler(kind, handler)


def _translate(error: Exception) -> ApiError:
    if isinstance(error, HTTPException) and error.status_code == 404:
        return NotFound("Unknown request URL. The routes are listed at /openapi.json.", code="unknown_url")
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"This URL does not take that method. It takes: {allowed}.", headers={"Allow": allowed})
    if isinstance(error, HTTPException):
        return BadRequest(f"The request could not be read: {error.detail}")
    return BadRequest(f"The request could not be read: {type(error).__name__}")
