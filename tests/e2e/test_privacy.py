"""What strangers, other users of the machine and other sites' pages get of a running server."""

from pathlib import Path

import httpx
import pytest

from tests.support.harness import Server

QUICK = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count"}
SITE = {"Origin": "https://site.example"}


@pytest.fixture
def stranger(server: Server) -> httpx.Client:
    """A client without a key."""
    return httpx.Client(base_url=server.base, timeout=280, trust_env=False)


def test_other_users_of_the_machine_can_read_nothing(server: Server) -> None:
    assert server.home.stat().st_mode & 0o777 == 0o700
    made = [path for path in server.home.rglob("*") if path.name != "server.log"]  # which the test has made
    assert {"darkroom.db", "dev-key", "admin-key"} <= {path.name for path in made}
    assert [path for path in made if mode_of(path) & 0o077] == []


def mode_of(path: Path) -> int:
    """0 of what is gone, such as the pixels of a call that has ended."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def test_the_log_has_no_key(server: Server) -> None:
    assert "Darkroom is ready" in server.log
    assert f"in {server.home / 'dev-key'}" in server.log
    assert server.key not in server.log
    assert server.admin_key not in server.log


def test_only_operators_learn_more_than_whether_the_server_is_ready(server: Server, stranger: httpx.Client) -> None:
    for headers in ({}, {"Authorization": f"Bearer {server.key}"}, {"Authorization": "Basic eA=="}):
        answer = stranger.get("/readyz", headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    assert {"device", "worker_pid", "jobs", "checkpoints"} <= server.readiness().keys()


def test_the_url_of_a_result_is_not_made_of_a_strangers_host(server: Server) -> None:
    with server.http() as client:
        answer = client.post("/v1/images/generations", json=QUICK, headers={"Host": "evil.example"})
        assert answer.json()["data"][0]["url"].startswith(f"{server.base}/cdn/")


def test_pages_of_other_sites_may_call_the_api_and_read_nothing_else(stranger: httpx.Client) -> None:
    request = {**SITE, "Access-Control-Request-Method": "POST"}
    assert stranger.options("/v1/chat/completions", headers=request).headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in stranger.get("/v1/models", headers=SITE).headers
    for path in ("/readyz", "/metrics", "/openapi.json", "/console", "/admin/reload", "/console/session"):
        for answer in (stranger.get(path, headers=SITE), stranger.options(path, headers=request)):
            assert "access-control-allow-origin" not in answer.headers


def test_the_consoles_session_is_a_cookie_for_its_own_page(server: Server, stranger: httpx.Client) -> None:
    assert stranger.post("/console/session").status_code == 401
    signed_in = stranger.post("/console/session", headers={"Authorization": f"Bearer {server.key}"})
    assert signed_in.status_code == 204
    cookie = signed_in.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert server.key.lower() not in cookie
    assert stranger.get("/v1/models").status_code == 200
    assert stranger.post("/v1/images/generations", json=QUICK, headers={"Origin": server.base}).status_code == 200
    for headers in ({}, SITE, {"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}):
        assert stranger.post("/v1/images/generations", json=QUICK, headers=headers).status_code == 401
    assert stranger.post("/admin/reload", headers={"Origin": server.base}).status_code == 401
    before = dict(stranger.cookies)
    assert stranger.delete("/console/session").status_code == 204
    stranger.cookies.update(before)
    assert stranger.get("/v1/models").status_code == 401
