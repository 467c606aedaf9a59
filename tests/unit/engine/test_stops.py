"""A server's end: every part is stopped, whatever becomes of the others."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.app import create_app
from server.backends.engine_host import EngineHost
from server.services import Services
from server.settings import REPOSITORY, Settings


async def test_a_chore_or_a_part_that_fails_leaves_the_others_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []

    async def start(host: EngineHost[object, object]) -> None:
        host._was_ready.set()  # no worker: what counts here is how it all ends

    async def stop(host: EngineHost[object, object]) -> None:
        stopped.append(host.kind)
        if host.kind == "image":
            raise OSError("it does not go")

    def announce(_: Services) -> None:
        raise BrokenPipeError("nobody reads")

    monkeypatch.setattr(EngineHost, "start", start)
    monkeypatch.setattr(EngineHost, "stop", stop)
    settings = Settings(home=tmp_path, weights=tmp_path, model_configs=REPOSITORY / "model_configs", database=None)
    app = create_app(settings, announce)
    with capture_logs() as logs, pytest.raises(OSError, match="does not go"):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0.05)
    assert stopped == ["image", "chat", "classify"]
    assert [entry["chore"] for entry in logs if entry["event"] == "a chore had failed"] == ["announcing"]
    with pytest.raises(RuntimeError, match="closed"):
        await app.state.services.upstreams._client.get("http://127.0.0.1:9")
