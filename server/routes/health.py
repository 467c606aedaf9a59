"""/healthz: the process lives. /readyz: it can draw. /metrics: for Prometheus."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from server.http.deps import ServicesDep

router = APIRouter()


@router.get("/healthz")
async def live() -> dict[str, str]:
    """200 while the event loop turns."""
    return {"status": "live"}


@router.get("/readyz")
async def readiness(services: ServicesDep) -> JSONResponse:
    """200 once the workers have loaded what they were asked to; 503 before, while a dead one is replaced, and when the
    server is about to stop."""
    host, chat, draining = services.images, services.chat, services.calls.closed
    classifiers, moderated = services.classifiers, bool(services.policy.classifiers)
    local_chat = bool(services.catalog.chat.checkpoints)
    loaded = host.ready and (chat.ready or not local_chat) and (classifiers.ready or not moderated)
    checkpoints = {**host.checkpoints, **chat.checkpoints, **classifiers.checkpoints}
    body: dict[str, Any] = {
        "status": "draining" if draining else "ready" if loaded else "starting",
        "device": host.device,
        "worker_pid": host.pid,
        "jobs": host.jobs,
        "chat": {"device": chat.device, "worker_pid": chat.pid, "jobs": chat.jobs} if local_chat else None,
        "checkpoints": {spec.name: {"state": c.state, "detail": c.detail} for spec, c in checkpoints.items()},
    }
    ready = loaded and not draining
    return JSONResponse(body, status_code=200 if ready else 503, headers={} if ready else {"Retry-After": "2"})


@router.get("/metrics")
async def metrics(services: ServicesDep) -> Response:
    """Counters and gauges in Prometheus' text format."""
    return Response(generate_latest(services.metrics.registry), media_type=CONTENT_TYPE_LATEST)
