"""/docs serves the built site under the console's Content-Security-Policy, or says how to build it."""

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from server.routes import docs
from server.routes.console import HEADERS


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> httpx.AsyncClient:
    monkeypatch.setattr(docs, "FILES", StaticFiles(directory=tmp_path, html=True, check_dir=False))
    app = FastAPI(docs_url=None, redoc_url=None)
    app.include_router(docs.router)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


def obeys(answer: httpx.Response) -> bool:
    return all(answer.headers[name] == value for name, value in HEADERS.items())


async def test_a_built_site_is_served_with_the_consoles_headers(client: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "guides").mkdir()
    (tmp_path / "index.html").write_text("home")
    (tmp_path / "404.html").write_text("no such page")
    (tmp_path / "guides" / "index.html").write_text("guides")
    start = await client.get("/docs")
    assert (start.status_code, start.headers["location"]) == (307, "docs/")
    answers = {path: await client.get(path) for path in ("/docs/", "/docs/guides/", "/docs/nothing")}
    assert {path: (each.status_code, each.text) for path, each in answers.items()} == {
        "/docs/": (200, "home"),
        "/docs/guides/": (200, "guides"),
        "/docs/nothing": (404, "no such page"),
    }
    assert all(obeys(each) for each in answers.values())


async def test_without_a_site_the_page_says_how_to_build_it(client: httpx.AsyncClient) -> None:
    for path in ("/docs/", "/docs/guides/images/"):
        answer = await client.get(path)
        assert answer.status_code == 404
        assert "make docs" in answer.text
        assert obeys(answer)


async def test_a_path_stays_within_the_site(client: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path.parent / "secret").write_text("secret")
    for path in ("/docs/../secret", "/docs/%2e%2e/secret", "/docs//etc/passwd"):
        assert "secret" not in (await client.get(path)).text
        assert (await client.get(path)).status_code == 404
