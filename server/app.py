"""The ASGI app: routes, middleware, error handlers, and the parts that start and stop with the server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import structlog
from fastapi import FastAPI

from server.backends.engine_host import EngineHost
from server.backends.worker_pool import WorkerPool
from server.build.services import build_services
from server.catalog.specs import spec_labels
from server.extras import DIALECTS
from server.flows.catalog.start import catalog_at_start
from server.housekeeping import (
    follow_cluster,
    lock_database,
    lock_home,
    recover_after_crash,
    run_maintenance,
    unregister_gateway,
)
from server.http.body_limit import BodyLimitMiddleware
from server.http.dialect import Dialect, request_id_headers
from server.http.error_handlers import handle_errors
from server.http.forwarding import BodyRecorder, Forwarder, listen
from server.http.middleware import ApiCorsMiddleware, LastNewlineMiddleware, PlainPathsMiddleware
from server.http.observability import ObservabilityMiddleware
from server.http.openapi_document import DocumentedApp, describe
from server.http.own_calls import send_batch_line
from server.routes import (
    account,
    admin,
    batches,
    chat,
    checkpoints,
    console,
    conversations,
    docs,
    files,
    gateways,
    health,
    image_jobs,
    images,
    models,
    moderations,
    operator_keys,
    operator_queue,
    operator_reports,
    operator_teams,
    responses,
    results,
    sign_in,
    unsupported,
    upscale,
    workers,
)
from server.services import Services
from server.settings import Settings
from server.telemetry.engine_metrics import EngineCollector, EngineReport

log = structlog.stdlib.get_logger("darkroom.serving")

ROUTES = (
    images, upscale, image_jobs, chat, responses, conversations, models, files, health, sign_in, console, docs, admin,
    checkpoints, gateways, account, results, operator_keys, operator_teams, operator_queue, operator_reports, workers,
    batches, moderations, unsupported,
)  # fmt: skip
EXPOSED_HEADERS = [
    "retry-after",
    "x-darkroom-ignored",
    "x-darkroom-truncated",
    "x-darkroom-job",
    "x-darkroom-wake-s",
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
    services.telemetry.metrics.registry.register(EngineCollector(lambda: _reports(services)))

    link = None if services.cluster is None else services.cluster.link
    forwarder = None if link is None else Forwarder(services.stores.gateways, link, services.stores.database.clock)
    # FastAPI's own pages fetch scripts from the internet; server/routes/docs.py serves ours
    app = DocumentedApp(
        title="Darkroom",
        version=version("darkroom"),
        description=describe(dialects),
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=partial(_running, services, on_ready),
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    app.state.dialects = dialects
    for router in (*(module.router for module in ROUTES), *(each for one in dialects for each in one.routers)):
        app.include_router(router)
    handle_errors(app, forwarder)
    _add_middleware(app, services, dialects, forwards=forwarder is not None)
    return app


@asynccontextmanager
async def _running(services: Services, on_ready: Callable[[Services], None], app: FastAPI) -> AsyncIterator[None]:
    """Run the parts that the app uses while this is entered: its lifespan."""
    settings, cluster = services.settings, services.cluster
    with lock_home(settings.home), lock_database(settings) or nullcontext():
        await services.stores.database.retry_in_writer(services.stores.database.migrate)
        async with AsyncExitStack() as shutdown:
            _register_shutdown(services, shutdown)
            if cluster is not None and settings.gateway_url is not None:
                shutdown.push_async_callback(cluster.link.close)
                listener = listen(app, settings.gateway_url, cluster.link.secret, services.stores.database.clock)
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
            tasks.append(
                asyncio.create_task(services.batches.runner.run(partial(send_batch_line, app)), name="batches")
            )
            if (ray_cluster := services.engines.cluster) is not None:
                tasks.append(asyncio.create_task(follow_cluster(services, ray_cluster), name="follow the cluster"))
            shutdown.push_async_callback(_cancel_tasks, tasks)
            yield


def _add_middleware(app: FastAPI, services: Services, dialects: Sequence[Dialect], *, forwards: bool) -> None:
    """Add the middleware around every route; the one that is added last is outermost."""
    settings = services.settings
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
    if forwards:
        app.add_middleware(BodyRecorder)
    app.add_middleware(
        ObservabilityMiddleware,
        metrics=services.telemetry.metrics,
        tracing=services.telemetry.tracing,
        record=services.operations.call_recorder.record,
    )
    app.add_middleware(LastNewlineMiddleware)
    app.add_middleware(PlainPathsMiddleware)


def _engines(services: Services) -> list[WorkerPool | EngineHost[Any, Any]]:
    """List the workers that this catalog and this policy need."""
    chat = [services.engines.chat] if services.served.catalog.current.chat.checkpoints else []
    classifiers = [services.engines.classify] if services.served.policy.current.classifiers else []
    return [services.engines.image, *chat, *classifiers]


def _reports(services: Services) -> list[EngineReport]:
    worker_pool, others = services.engines.image, _engines(services)[1:]
    images = [
        replace(
            _report(services, host),
            work_s=worker_pool.remaining_s(host),
            cached_checkpoints=host.status.cached_checkpoints,
        )
        for host in worker_pool.hosts
    ]
    return images + [_report(services, engine) for engine in others if isinstance(engine, EngineHost)]


def _report(services: Services, host: EngineHost[Any, Any]) -> EngineReport:
    served = health.served_specs(services)
    loaded = {spec: state.state == "loaded" for spec, state in host.checkpoints.items() if spec in served}
    return EngineReport(
        engine=host.name,
        kind=host.kind,
        up=host.ready,
        asleep=host.status.sleep == "asleep",
        waiting=host.jobs - host.running,
        running=host.running,
        restarts=host.restarts,
        memory=host.status.memory,
        checkpoints={label: loaded[spec] for spec, label in spec_labels(loaded).items()},
    )


def _register_shutdown(services: Services, shutdown: AsyncExitStack) -> None:
    """Register the stop of each part, which happens even if another one fails to stop. They stop in reverse order."""
    shutdown.push_async_callback(asyncio.to_thread, services.telemetry.tracing.stop)
    shutdown.callback(services.stores.database.dispose)
    shutdown.push_async_callback(unregister_gateway, services)
    shutdown.push_async_callback(services.engines.upstreams.close)
    shutdown.push_async_callback(services.running.background.join)
    shutdown.push_async_callback(services.engines.classify.stop)
    shutdown.push_async_callback(services.engines.chat.stop)
    shutdown.push_async_callback(services.engines.image.stop)
    shutdown.push_async_callback(services.engines.decoders.stop)
    shutdown.push_async_callback(services.running.calls.stop)
    shutdown.push_async_callback(services.running.chats.stop)
    shutdown.push_async_callback(services.running.responses.stop)
    shutdown.callback(services.stores.database.stop_waiting)


async def _cancel_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks, and log those that had failed before."""
    for task in tasks:
        task.cancel()
    for task, outcome in zip(tasks, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
        if isinstance(outcome, Exception):  # CancelledError is not an Exception
            log.error("a server task had failed", task=task.get_name(), exc_info=outcome)


async def _signal_ready(
    engines: Sequence[WorkerPool | EngineHost[Any, Any]], services: Services, on_ready: Callable[[Services], None]
) -> None:
    for engine in engines:
        await engine.wait_ready()
    on_ready(services)
