"""What proxies say is believed of those in FORWARDED_ALLOW_IPS alone; a path before the server's own is taken off."""

from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from server.http.public_address import ProxyHeadersMiddleware, own_address, trusted_networks

TRUSTED = trusted_networks("10.0.0.1, 192.0.2.0/24,/run/a.sock")
PROXY, STRANGER = ("10.0.0.1", 5), ("203.0.113.9", 5)
ASKED = "http://192.0.2.7:8080"  # the address at which the connection arrives


def said(**headers: str) -> dict[str, str]:
    return {f"X-Forwarded-{name.capitalize()}": value for name, value in headers.items()}


async def ask(
    path: str, headers: dict[str, str], client: tuple[str, int] = PROXY, public_urls: tuple[str, ...] = ()
) -> httpx.Response:
    """The answer of an app that tells what it sees of the request."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        seen = {
            "own": own_address(request, public_urls), "path": scope["path"], "raw": scope["raw_path"].decode(),
            "client": scope["client"][0], "host": request.headers["host"], "scheme": request.url.scheme,
        }  # fmt: skip
        await JSONResponse(seen, headers={"Location": "/v1/x"})(scope, receive, send)

    transport = httpx.ASGITransport(ProxyHeadersMiddleware(app, TRUSTED, public_urls), client=client)
    async with httpx.AsyncClient(transport=transport, base_url=ASKED) as http:
        return await http.get(path, headers=headers)


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({}, ASKED),
        (said(proto="https"), "https://192.0.2.7:8080"),
        (said(host="a.example"), "http://a.example"),
        (said(host="a.example", proto="https", port="443"), "https://a.example"),
        (said(host="a.example", proto="https", port="8443"), "https://a.example:8443"),
        (said(host="a.example:8443", proto="https", port="443"), "https://a.example:8443"),
        (said(host="a.example", prefix="/darkroom/"), "http://a.example/darkroom"),
        (said(host="evil.example, a.example"), "http://a.example"),  # the nearest proxy has added the last one
        (said(host="[2001:db8::1]:9", proto="https"), "https://[2001:db8::1]:9"),
        (said(host="a b", prefix="//evil.example", proto="ftp", port="x"), ASKED),
        (said(host='a"><script>', prefix="/a/../b?c"), ASKED),
        ({"Host": "localhost", **said(port="9000")}, "http://localhost:9000"),
        ({"Forwarded": 'for=198.51.100.1;host="a.example:81";proto=https'}, "https://a.example:81"),
        ({"Forwarded": "host=evil.example, For=198.51.100.1;Host=a.example"}, "http://a.example"),
        ({"Forwarded": "host=evil.example", **said(**{"for": "198.51.100.1"})}, ASKED),  # a stranger's, passed on
    ],
)  # fmt: skip
async def test_a_trusted_proxy_says_how_the_client_asked(headers: dict[str, str], own: str) -> None:
    assert (await ask("/v1/models", headers)).json()["own"] == own
    by_stranger = (await ask("/v1/models", headers, STRANGER)).json()
    assert by_stranger["own"] in {ASKED, "http://localhost"}
    assert (by_stranger["client"], by_stranger["scheme"]) == (STRANGER[0], "http")


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ({}, PROXY[0]),
        (said(**{"for": "198.51.100.1"}), "198.51.100.1"),
        (said(**{"for": "1.2.3.4, 198.51.100.1, 192.0.2.5"}), "198.51.100.1"),  # the last is a proxy, the first made up
        (said(**{"for": "198.51.100.1:4711"}), "198.51.100.1"),
        (said(**{"for": "[2001:db8::1]:4711"}), "2001:db8::1"),
        (said(**{"for": "198.51.100.1, unknown"}), PROXY[0]),
        ({"Forwarded": 'for=198.51.100.1, for="[2001:db8::1]:80"'}, "2001:db8::1"),
    ],
)
async def test_the_client_is_the_nearest_address_of_no_proxy(headers: dict[str, str], client: str) -> None:
    assert (await ask("/", headers)).json()["client"] == client


@pytest.mark.parametrize(
    ("path", "headers", "public_urls", "seen"),
    [
        ("/darkroom/v1/a%2Fb", said(prefix="/darkroom"), (), ("/v1/a/b", "/v1/a%2Fb", "/darkroom/v1/x")),
        ("/v1/x", said(prefix="/darkroom"), (), ("/v1/x", "/v1/x", "/darkroom/v1/x")),  # taken off by the proxy
        ("/darkroom", said(prefix="/darkroom"), (), ("/", "/", "/darkroom/v1/x")),
        ("/darkroomy/v1", said(prefix="/darkroom"), (), ("/darkroomy/v1", "/darkroomy/v1", "/darkroom/v1/x")),
        ("/a/b/v1", {}, ("https://h.example/a/b/",), ("/v1", "/v1", "/a/b/v1/x")),
        ("/v1", {}, ("https://h.example/a/b/",), ("/v1", "/v1", "/a/b/v1/x")),
        ("/v1", {}, (), ("/v1", "/v1", "/v1/x")),
    ],
)
async def test_a_path_before_the_servers_own_is_taken_off(
    path: str, headers: dict[str, str], public_urls: tuple[str, ...], seen: tuple[str, str, str]
) -> None:
    answer = await ask(path, headers, public_urls=public_urls)
    found: dict[str, Any] = answer.json()
    assert (found["path"], found["raw"], answer.headers["location"]) == seen


def test_every_address_may_be_trusted() -> None:
    assert len(trusted_networks("*")) == 2
    assert trusted_networks("nonsense, ::1")[0].version == 6
