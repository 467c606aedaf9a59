"""Which origins a browser lets call the API."""

from pathlib import Path

import httpx
import pytest

from server.app import create_app
from server.data_folders import REPOSITORY
from server.settings import Settings

ASK = {"Access-Control-Request-Method": "POST"}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> httpx.AsyncClient:
    monkeypatch.setenv("DARKROOM_CORS_ORIGINS", "https://one.example, http://localhost:3000")
    settings = Settings(home=tmp_path, weights=tmp_path, model_configs=REPOSITORY / "model_configs", database=None)
    return httpx.AsyncClient(transport=httpx.ASGITransport(create_app(settings)), base_url="http://server")


@pytest.mark.parametrize("origin", ["https://one.example", "http://localhost:3000"])
async def test_a_named_origin_may_call(client: httpx.AsyncClient, origin: str) -> None:
    answer = await client.options("/v1/models", headers={**ASK, "Origin": origin})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)


async def test_another_origin_is_refused_as_every_error_is(client: httpx.AsyncClient) -> None:
    answer = await client.options("/v1/models", headers={**ASK, "Origin": "https://other.example"})
    assert "access-control-allow-origin" not in answer.headers
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")


def test_an_origin_has_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_CORS_ORIGINS", "https://one.example/app")
    with pytest.raises(ValueError, match="cors_origins"):
        Settings()
