"""The metrics of requests."""

import httpx
from prometheus_client import generate_latest
from starlette.applications import Starlette

from server.http.observability import ObservabilityMiddleware
from server.telemetry.metrics import Metrics
from server.telemetry.tracing import Tracing


async def test_unknown_paths_and_methods_share_one_label() -> None:
    metrics = Metrics()
    recorded: list[tuple[object, ...]] = []
    inner = Starlette()
    inner.state.dialects = ()
    app = ObservabilityMiddleware(inner, metrics, Tracing(), lambda *call: recorded.append(call))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://darkroom") as client:
        for number in range(3):
            await client.request(f"X{number}", f"/{number}")
        await client.get("/")
        await client.get("/openapi.json")
    assert recorded == []  # no key asked for a model
    counted = [line for line in generate_latest(metrics.registry).decode().splitlines() if "requests_total{" in line]
    assert counted == [
        'darkroom_requests_total{method="other",route="unknown",status="404"} 3.0',
        'darkroom_requests_total{method="GET",route="unknown",status="404"} 1.0',
        'darkroom_requests_total{method="GET",route="/openapi.json",status="404"} 1.0',
    ]
