"""The ASGI app: routes, middleware, error handlers, and what starts and stops with the server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from server.backends.engine_host import EngineHost
from server.backends.fleet import Fleet
from server.build.services import build_services
from server.errors import ApiError, BadRequest, MethodNotAllowed, NotFound, RunsElsewhere
from server.extras import DIALECTS
from server.flows.cluster_catalog.start import catalog_at_start
from server.housekeeping import (
    follow_cluster,
    leave_others,
    lock_database,
    lock_home,
    recover_after_crash,
    run_maintenance,
)
from server.http.body_limit import BodyLimitMiddleware
from server.http.cors import ApiCorsMiddleware
from server.http.dialect import Dialect, dialects_of, find_dialect, request_id_headers
from server.http.errors import error_answer, note_error
from server.http.forwarding import BodyRecorder, Forwarder, listen
from server.http.observability import ObservabilityMiddleware
from server.http.openapi_document import DocumentedApp, describe
from server.routes import (
    account,
    admin,
    chat,
    checkpoints,
    console,
    conversations,
    files,
    gateways,
    health,
    image_jobs,
    images,
    models,
    operator_keys,
    operator_queue,
    operator_reports,
    responses,
    results,
    unsupported,
)
from server.services import Services
from server.settings import Settings
from server.telemetry.engine_metrics import EngineReport

log = structlog.stdlib.get_logger("darkroom.serving")

ROUTES = (
    images,
    image_jobs,
    chat,
    responses,
    conversations,
    models,
    files,
    health,
    console,
    admin,
    checkpoints,
    gateways,
    account,
    results,
    operator_keys,
    operator_queue,
    operator_reports,
    unsupported,
)
MISPLACED = {"images", "chat", "responses", "conversations", "models"}  # first parts of URLs without /v1
EXPOSED_HEADERS = [
    "retry-after",
    "x-darkroom-ignored",
    "x-darkroom-truncated",
    "x-darkroom-job",
    "idempotency-replayed",
    "openai-processing-ms",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
]


def create_app(
    settings: Settings,
    on_ready: Callable[[Services], None] = lambda _: None,
    dialects: Sequence[Dialect] = DIALECTS,
) -> FastAPI:
    """Build the ASGI app, and all that it stands on. `on_ready` is called once, when all workers are ready. Raises
    CatalogError and StartError."""
    services = build_services(settings, catalog_at_start(settings))
    services.telemetry.metrics.track_engines(lambda: _reports(services))

    link = None if services.cluster is None else services.cluster.link
    forwarder = None if link is None else Forwarder(services.stores.gateways, link, services.stores.database.clock)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with lock_home(settings.home), lock_database(settings) or nullcontext():
            await services.stores.database.in_patient_writer(services.stores.database.migrate)
            async with AsyncExitStack() as shutdown:
                _register_shutdown(services, shutdown)
                if link is not None and settings.gateway_url is not None:
                    shutdown.push_async_callback(link.close)
                    listener = listen(app, settings.gateway_url, link.secret, services.stores.database.clock)
                    await shutdown.enter_async_context(listener)
                await recover_after_crash(services)
                await services.engines.decoders.start()
                engines = _engines(services)
                for engine in engines:
                    await engine.start()
                tasks = [
                    asyncio.create_task(run_maintenance(services), name="maintenance"),
                    asyncio.create_task(_signal_ready(engines, services, on_ready), name="signal ready"),
                ]
                if settings.cluster is not None:
                    tasks.append(asyncio.create_task(follow_cluster(services), name="follow the cluster"))
                shutdown.push_async_callback(_cancel_tasks, tasks)
                yield

    # no docs pages: their scripts would come from the internet
    app = DocumentedApp(
        title="Darkroom",
        version=version("darkroom"),
        description=describe(dialects),
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    app.state.dialects = dialects
    for router in (*(module.router for module in ROUTES), *(each for one in dialects for each in one.routers)):
        app.include_router(router)
    _handle_errors(app, forwarder)
    app.add_middleware(
        BodyLimitMiddleware,
        budget=services.running.bodies,
        max_json_bytes=settings.max_json_mib * 1024**2,
        timeout_s=settings.request_timeout_s,
    )
    app.add_middleware(
        ApiCorsMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        allow_private_network=True,  # a page on the internet may call a server in its user's network
        expose_headers=[*request_id_headers(dialects), *EXPOSED_HEADERS],
    )
    if forwarder is not None:
        app.add_middleware(BodyRecorder)
    app.add_middleware(
        ObservabilityMiddleware,
        metrics=services.telemetry.metrics,
        tracing=services.telemetry.tracing,
        record=services.operations.call_recorder.record,
    )
    return app


def _engines(services: Services) -> list[Fleet | EngineHost[Any, Any]]:
    """The workers that this catalog and this policy need."""
    chat = [services.engines.chat] if services.served.catalog.current.chat.checkpoints else []
    classifiers = [services.engines.classify] if services.served.policy.current.classifiers else []
    return [services.engines.image, *chat, *classifiers]


def _reports(services: Services) -> list[EngineReport]:
    fleet, others = services.engines.image, _engines(services)[1:]
    images = [replace(_report(host), work_s=fleet.left_s(host), residents=host.residents) for host in fleet.hosts]
    return images + [_report(engine) for engine in others if isinstance(engine, EngineHost)]


def _report(host: EngineHost[Any, Any]) -> EngineReport:
    return EngineReport(
        engine=host.name,
        kind=host.kind,
        up=host.ready,
        waiting=host.jobs - host.running,
        running=host.running,
        restarts=host.restarts,
        memory=host.memory,
        checkpoints={spec.name: state.state == "loaded" for spec, state in host.checkpoints.items()},
    )


def _register_shutdown(services: Services, shutdown: AsyncExitStack) -> None:
    """How each part stops, even if another one fails to. They stop in reverse order."""
    shutdown.push_async_callback(asyncio.to_thread, services.telemetry.tracing.stop)
    shutdown.callback(services.stores.database.dispose)
    shutdown.push_async_callback(leave_others, services)
    shutdown.push_async_callback(services.engines.upstreams.close)
    shutdown.push_async_callback(services.running.background.join)
    shutdown.push_async_callback(services.engines.classify.stop)
    shutdown.push_async_callback(services.engines.chat.stop)
    shutdown.push_async_callback(services.engines.image.stop)
    shutdown.push_async_callback(services.engines.decoders.stop)
    shutdown.push_async_callback(services.running.calls.stop)
    shutdown.push_async_callback(services.running.keyed_chats.stop)
    shutdown.push_async_callback(services.running.responses.stop)
    shutdown.callback(services.stores.database.stop_waiting)


async def _cancel_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel them, and log those that had failed before."""
    for task in tasks:
        task.cancel()
    for task, outcome in zip(tasks, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
        if isinstance(outcome, Exception):  # CancelledError is not an Exception
            log.error("a server task had failed", task=task.get_name(), exc_info=outcome)


async def _signal_ready(
    engines: Sequence[Fleet | EngineHost[Any, Any]], services: Services, on_ready: Callable[[Services], None]
) -> None:
    for engine in engines:
        await engine.wait_ready()
    on_ready(services)


def _handle_errors(app: FastAPI, forwarder: Forwarder | None) -> None:
    """Errors of the framework become ApiErrors. ObservabilityMiddleware catches everything else. What runs on another
    gateway is answered by that one."""

    async def answer(request: Request, error: Exception) -> Response:
        if request.method == "OPTIONS" and isinstance(error, HTTPException) and error.status_code == 405:
            return Response(status_code=204, headers=dict(error.headers or {}))
        if isinstance(error, RunsElsewhere) and forwarder is not None:
            url = await forwarder.find_url(request.scope, error)
            if url is not None:
                return forwarder.answer(request.scope, error, url)
        api_error = error if isinstance(error, ApiError) else _translate(error, request.scope)
        note_error(request.scope, api_error)
        status, body = error_answer(request.scope, api_error)
        return JSONResponse(body, status_code=status, headers=api_error.headers)

    handler: Callable[[Request, Exception], Awaitable[Response]] = answer
    for kind in (ApiError, HTTPException, RequestValidationError, ClientDisconnect):
        app.add_exception_handler(kind, handler)


def _translate(error: Exception, scope: Scope) -> ApiError:
    if isinstance(error, HTTPException) and error.status_code == 404:
        return NotFound(f"Unknown request URL. {_advice(scope)}", code="unknown_url")
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"This URL does not take that method. It takes: {allowed}.", headers={"Allow": allowed})
    if isinstance(error, HTTPException):
        return BadRequest(f"The request could not be read: {error.detail}")
    if isinstance(error, RequestValidationError):
        return _bad_parameter(error)
    return BadRequest("The request could not be read: the client closed its connection.")


def _advice(scope: Scope) -> str:
    """Return what to do about a URL that is not served: a client's base URL is the part that people get wrong."""
    path: str = scope["path"]
    first, _, rest = path.lstrip("/").partition("/")
    twice = first == "v1" and rest.startswith("v1")
    if not (first in MISPLACED or twice or find_dialect(scope, f"/v1{path}")):
        return "The routes are listed at /openapi.json."
    others = " and ".join(f"{dialect.vendor}'s" for dialect in dialects_of(scope))
    advice = "URLs begin with /v1 once: the base URL of OpenAI's clients ends in /v1"
    return f"{advice}, that of {others} does not." if others else f"{advice}."


def _bad_parameter(error: RequestValidationError) -> ApiError:
    """FastAPI reads parameters of the URL alone: bodies are validated elsewhere."""
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return BadRequest(f"Invalid '{name}': {first['msg']}.", param=name)
