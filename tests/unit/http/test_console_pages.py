"""The console's files and sessions over HTTP."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from tests.support.in_process import InProcess, in_process

OWN = {"Origin": "http://test"}
FOREIGN = {"Origin": "http://localhost:1234"}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[InProcess]:
    (tmp_path / "admin-key").write_text("sk-admin-one")
    async with in_process(tmp_path) as running:
        running.client.headers.pop("Authorization")  # as a browser has none
        yield running


def _admin() -> dict[str, str]:
    return {"Authorization": "Bearer sk-admin-one"}


async def _sign_in(app: InProcess, headers: dict[str, str]) -> httpx.Response:
    answer = await app.client.post("/console/session", headers=headers)
    assert answer.status_code == 204, answer.text
    assert answer.headers["set-cookie"].count("HttpOnly") == answer.headers["set-cookie"].count("SameSite=strict") == 1
    return answer


async def test_a_browser_may_be_a_key_and_an_operator_at_once(app: InProcess) -> None:
    shown = (await app.client.get("/console/session")).json()
    assert shown == {"key": None, "operator": False}
    assert (await app.client.get("/admin/checkpoints")).status_code == 401
    await _sign_in(app, await app.another_key())
    assert (await app.client.get("/v1/models")).status_code == 200
    assert (await app.client.get("/admin/checkpoints")).status_code == 401
    await _sign_in(app, _admin())
    shown = (await app.client.get("/console/session")).json()
    assert (shown["key"]["name"], shown["operator"]) == ("test", True)
    assert (await app.client.get("/admin/checkpoints")).status_code == 200
    assert "checkpoints" in (await app.client.get("/readyz")).json()
    assert (await app.client.delete("/console/session", headers=OWN)).status_code == 204
    assert (await app.client.get("/console/session")).json() == {"key": None, "operator": False}


async def test_a_page_of_another_origin_cannot_use_an_operators_session(app: InProcess) -> None:
    await _sign_in(app, _admin())
    assert (await app.client.post("/admin/undo", headers=FOREIGN)).status_code == 401
    assert (await app.client.post("/admin/undo")).status_code == 401
    assert (await app.client.post("/admin/undo", headers=OWN)).status_code == 400  # there is nothing to undo


async def test_a_new_admin_key_ends_the_sessions_of_the_old_one(app: InProcess) -> None:
    await _sign_in(app, _admin())
    app.services.settings.admin_key.write_text("sk-admin-another")
    assert (await app.client.get("/console/session")).json()["operator"] is False
    assert (await app.client.get("/admin/checkpoints")).status_code == 401


async def test_a_wrong_key_opens_no_session(app: InProcess) -> None:
    for headers in ({}, {"Authorization": "Bearer sk-dr-wrong"}):
        answer = await app.client.post("/console/session", headers=headers)
        assert (answer.status_code, answer.headers.get("set-cookie")) == (401, None)


async def test_pages_have_one_document_and_files_are_asked_again(app: InProcess) -> None:
    pages = [await app.client.get(path) for path in ("/console", "/console/", "/console/gallery", "/console/a/b")]
    for page in pages:  # wherever a proxy has put the server
        scripts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        found = {urljoin(f"http://h/darkroom{page.url.path}", each) for each in scripts}
        assert "http://h/darkroom/console/app.js" in found
        assert [each for each in found if not each.startswith("http://h/darkroom/console/")] == []
    assert {page.headers["content-type"] for page in pages} == {"text/html; charset=utf-8"}
    script = await app.client.get("/console/app.js")
    assert script.headers["content-type"].startswith("text/javascript")
    policy = script.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    again = await app.client.get("/console/app.js", headers={"If-None-Match": script.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/console/nothing.js", "/console/../app.py", "/console/..%2fapp.py", "/console/a%00b.js"]
)
async def test_nothing_else_is_a_file_of_the_console(app: InProcess, path: str) -> None:
    assert (await app.client.get(path)).status_code == 404
