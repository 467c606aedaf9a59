"""/healthz: the process lives. /readyz: it can draw. /metrics: for Prometheus."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from server.routes.deps import ServicesDep

router = APIRouter()


@router.get("/healthz")
async def live() -> dict[str, str]:
    """200 while the event loop turns."""
    return {"status": "live"}


@router.get("/readyz")
async def ready(services: ServicesDep) -> JSONResponse:
    """200 once the worker has loaded what it was asked to load; 503 before, and while a dead worker is replaced."""
    host = services.images
    body: dict[str, Any] = {
        "status": "ready" if host.ready else "starting",
        "device": host.device,
        "worker_pid": host.pid,
        "jobs": host.jobs,
        "checkpoints": {name: {"state": c.state, "detail": c.detail} for name, c in host.checkpoints.items()},
    }
    return JSONResponse(
        body, status_code=200 if host.ready else 503, headers={} if host.ready else {"Retry-After": "2"}
    )


@router.get("/metrics")
async def metrics(services: ServicesDep) -> Response:
    """Counters and gauges in Prometheus' text format."""
    return Response(generate_latest(services.metrics.registry), media_type=CONTENT_TYPE_LATEST)
