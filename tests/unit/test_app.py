"""Server shutdown: every component is stopped, even if another one fails to."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.app import create_app
from server.backends.engine_host import EngineHost
from server.data_folders import REPOSITORY
from server.services import Services
from server.settings import Settings


async def test_a_failed_task_or_component_does_not_keep_the_others_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    signalled = asyncio.Event()

    async def start(host: EngineHost[object, object]) -> None:
        host._became_ready.set()  # no worker: the test is about the shutdown

    async def stop(host: EngineHost[object, object]) -> None:
        stopped.append(host.kind)
        if host.kind == "image":
            raise OSError("the worker does not stop")

    def signal_ready(_: Services) -> None:
        signalled.set()
        raise BrokenPipeError("stdout is closed")

    monkeypatch.setattr(EngineHost, "start", start)
    monkeypatch.setattr(EngineHost, "stop", stop)
    settings = Settings(home=tmp_path, weights=tmp_path, model_configs=REPOSITORY / "model_configs", database=None)
    app = create_app(settings, signal_ready)
    with capture_logs() as logs, pytest.raises(OSError, match="does not stop"):
        async with app.router.lifespan_context(app):
            await asyncio.wait_for(signalled.wait(), 60)
    assert stopped == ["image", "chat", "classify"]
    assert [entry["task"] for entry in logs if entry["event"] == "a server task had failed"] == ["signal ready"]
    with pytest.raises(RuntimeError, match="closed"):
        await app.state.services.engines.upstreams.http.get("http://127.0.0.1:9")
