"""/healthz: the process is alive. /readyz: it takes calls, and for operators why not. /metrics: for Prometheus."""

import asyncio
import shutil
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pipelines.protocol.messages import Spec
from server.backends.demands import ImageHost
from server.backends.engine_host import EngineHost
from server.catalog.specs import spec_labels
from server.flows.operators.sleep import longest_wake_s
from server.http.deps import ServicesDep
from server.http.openapi import answer, returns, schema_of
from server.http.operators import find_request_operator
from server.schemas.status import (
    CheckpointReport,
    ImageWorkerState,
    Liveness,
    Readiness,
    ReadinessDetails,
    ServerState,
    WorkerState,
)
from server.services import Services

router = APIRouter()
READ = ["GET", "HEAD"]  # probes and load balancers send HEAD

READINESS = {"anyOf": [schema_of(type_, "serialization") for type_ in (Readiness, ReadinessDetails)]}


@router.api_route("/healthz", methods=READ, response_description="The process is alive.")
async def liveness() -> Liveness:
    """Check liveness.

    Answers while the process is alive. It says nothing of the models.
    """
    return {"status": "live"}


@router.api_route(
    "/readyz",
    methods=READ,
    response_description="The server takes calls.",
    responses={
        **returns(READINESS),
        503: answer("The server starts, replaces a worker, can not write, or is about to stop.", READINESS),
    },
)
async def readiness(request: Request, services: ServicesDep) -> JSONResponse:
    """Check readiness.

    Tells whether the server takes calls. With the admin key, also the state of its workers and of each checkpoint.
    """
    ready = server_state(services) == "ready"
    operator = await find_request_operator(request, services)  # who may see paths
    body: Readiness = readiness_details(services) if operator else {"status": server_state(services)}
    return JSONResponse(body, status_code=200 if ready else 503, headers={} if ready else {"Retry-After": "2"})


def readiness_details(services: Services) -> ReadinessDetails:
    """Return the state of this server for its operators."""
    image, chat, cluster = services.engines.image, services.engines.chat, services.cluster
    classify = services.engines.classify
    checkpoints, models = _checkpoint_reports(services)
    return {
        "status": server_state(services),
        **_worker_state(image.hosts[0]),
        "image": [_image_worker(services, host) for host in image.hosts],
        "chat": _worker_state(chat) if services.served.catalog.current.chat.checkpoints else None,
        "classify": _worker_state(classify) if services.served.policy.current.classifiers else None,
        "checkpoints": checkpoints,
        "models": models,
        "catalog": None if cluster is None else {"version": cluster.member.version, "problem": cluster.member.problem},
    }


def server_state(services: Services) -> ServerState:
    """Return the state of a server. It is not ready if it does not serve the cluster's catalog, nor if it can't
    charge."""
    image, chat, classify = services.engines.image, services.engines.chat, services.engines.classify
    has_classifiers = bool(services.served.policy.current.classifiers)
    has_local_chat = bool(services.served.catalog.current.chat.checkpoints)
    loaded = image.ready and (chat.ready or not has_local_chat) and (classify.ready or not has_classifiers)
    is_current = services.cluster is None or services.cluster.member.is_current
    if services.running.drain.draining:
        return "draining"
    if services.stores.database.is_read_only:
        return "read-only"
    return "ready" if loaded and is_current else "starting"


def _worker_state(host: EngineHost[Any, Any]) -> WorkerState:
    status = host.status
    return {
        "device": status.device, "problem": status.problem, "worker_pid": status.pid, "jobs": host.jobs,
        "sleep": status.sleep, "wake_s": longest_wake_s(host),
    }  # fmt: skip


def _checkpoint_reports(services: Services) -> tuple[dict[str, CheckpointReport], dict[str, list[str]]]:
    """Return the state of each served checkpoint by its name, and the names of the checkpoints of each model."""
    image, chat, classify = services.engines.image, services.engines.chat, services.engines.classify
    known = {**image.checkpoints, **chat.checkpoints, **classify.checkpoints}
    hosts: list[EngineHost[Any, Any]] = [*image.hosts, chat, classify]
    served = {spec: known[spec] for spec in served_specs(services) if spec in known}
    labels = spec_labels({spec: (state.state, state.detail) for spec, state in served.items()})
    reports: dict[str, CheckpointReport] = {}
    for spec, state in served.items():
        asleep = state.state == "loaded" and any(host.wake_s(spec) for host in hosts)
        reports[labels[spec]] = {"state": "asleep" if asleep else state.state, "detail": state.detail}
    models: dict[str, list[str]] = {}
    for spec, names in served_specs(services).items():
        for name in names if spec in labels else ():
            models.setdefault(name, []).append(labels[spec])
    return reports, models


def served_specs(services: Services) -> dict[Spec, list[str]]:
    """Return the checkpoints that the catalog and the policy name, with the models that each serves."""
    catalog = services.served.catalog.current
    served: dict[Spec, list[str]] = {}
    for model in catalog.models.values():
        for image in model.checkpoints:
            served.setdefault(image, []).append(model.name)
    for chat in catalog.chat.models.values():
        if chat.spec is not None:
            served.setdefault(chat.spec, []).append(chat.name)
    return served | {spec: [] for spec in services.served.policy.current.checkpoints}


def _image_worker(services: Services, host: ImageHost) -> ImageWorkerState:
    cached_checkpoints = host.status.cached_checkpoints
    cached = cached_checkpoints.checkpoints if cached_checkpoints else ()
    too_small = services.engines.image.current.too_small.get(host.name, {})
    states = {spec: host.checkpoints[spec] for spec in served_specs(services) if spec in host.checkpoints}
    failed: dict[Spec, str] = {spec: state.detail for spec, state in states.items() if state.state == "failed"}
    failed.update(too_small.items())
    labels = spec_labels({spec: failed.get(spec) for spec in {**states, **failed}})
    return {
        "name": host.name,
        **_worker_state(host),
        "ready": host.ready,
        "restarts": host.restarts,
        "work_s": round(services.engines.image.remaining_s(host), 1),
        "weights_bytes": cached_checkpoints.device_bytes if cached_checkpoints else 0,
        "weights_budget_bytes": cached_checkpoints.budget_bytes if cached_checkpoints else None,
        "checkpoints": [
            {"name": name, "bytes": each.bytes, "on_device": each.on_device}
            for each, name in zip(cached, spec_labels({each.spec: each for each in cached}).values(), strict=True)
        ],
        "failed": {labels[spec]: reason for spec, reason in failed.items()},
    }


@router.api_route(
    "/metrics",
    methods=READ,
    response_description="The metrics.",
    responses=returns({"type": "string"}, media_type="text/plain"),
)
async def metrics(services: ServicesDep) -> Response:
    """Read metrics.

    Counters and gauges in the text format of Prometheus.
    """
    disk = await asyncio.to_thread(shutil.disk_usage, services.settings.home)
    services.telemetry.metrics.disk_free_bytes.set(disk.free)
    return Response(generate_latest(services.telemetry.metrics.registry), media_type=CONTENT_TYPE_LATEST)
