"""The server below a path of a proxy's: results, places of calls, the console in a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from tests.e2e.test_console import SPECS, browser, console_server, run_spec
from tests.support.harness import MakeServer, Server, free_port
from tests.support.nginx import PROGRAM, below

__all__ = ["browser", "console_server"]

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(PROGRAM is None, reason="nginx is not installed")]

PATH = "/darkroom"
BODY: dict[str, Any] = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count"}
SAID = (
    "proxy_set_header Host darkroom;",
    "proxy_set_header X-Forwarded-Host $http_host;",
    "proxy_set_header X-Forwarded-Proto $scheme;",
    "proxy_set_header X-Forwarded-Prefix /darkroom;",
)


@pytest.mark.parametrize(
    ("lines", "keeps_path", "names_it"),
    [
        (SAID, False, False),
        (SAID, True, False),
        (("proxy_set_header Host $http_host;",), True, True),
        ((), False, True),
    ],
    ids=["headers", "headers, path kept", "setting, path kept", "setting"],
)
def test_urls_of_the_server_lead_through_the_proxy(
    make_server: MakeServer, tmp_path: Path, lines: tuple[str, ...], keeps_path: bool, names_it: bool
) -> None:
    port = free_port()
    server = make_server(**({"public_urls": f"http://127.0.0.1:{port}{PATH}"} if names_it else {}))
    headers = {"Authorization": f"Bearer {server.key}"}
    with (
        below(server, tmp_path, PATH, *lines, port=port, keeps_path=keeps_path) as base,
        httpx.Client(headers=headers, timeout=240, trust_env=False) as client,
    ):
        url = client.post(f"{base}/v1/images/generations", json=BODY).raise_for_status().json()["data"][0]["url"]
        assert url.startswith(f"{base}/cdn/")
        assert client.get(url).headers["content-type"] == "image/png"
        begun = client.post(f"{base}/v1/images/generations", json=BODY, headers={"Prefer": "respond-async"})
        place = urljoin(str(begun.url), begun.headers["location"])
        assert place.startswith(f"{base}/v1/images/jobs/")
        assert client.get(place).status_code == 200
        page = client.get(f"{base}/", follow_redirects=True)
        assert (page.status_code, str(page.url)) == (200, f"{base}/console")
        assert client.get(f"{base}/docs", follow_redirects=True).url == f"{base}/docs/"


@pytest.fixture(scope="module")
def console_below(console_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server of the console's specs, of a proxy that says nothing of the path."""
    lines = ("proxy_set_header Host $http_host;",)
    with below(console_server, tmp_path_factory.mktemp("nginx"), PATH, *lines) as base:
        yield base


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name.partition(".")[0])
def test_the_console_works_below_the_path(path: Path, console_below: str, console_server: Server, browser: str) -> None:
    run_spec(path, browser, console_server, console_below)
