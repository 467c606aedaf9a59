"""Requests between gateways, about calls that run on the other one, signed with the cluster's secret.

The signature covers all that decides: the method, the URL, the caller's key, the address that the caller used, the body
and the time. Other headers are the client's own, and not signed. Nothing is encrypted here: that is left to the private
network or a proxy.
"""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

CONNECT_TIMEOUT_S = 3.0
MAX_AGE_S = 60.0
SIGNATURE = "x-darkroom-signature"
SIGNED = ("x-darkroom-key", "x-darkroom-server", "x-darkroom-body", "x-darkroom-sent")
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect"}
)
SECRETS = ("authorization", "cookie")  # the caller's key is signed instead; `Forwarder` leaves out other key headers
NOT_SENT = frozenset({*SIGNED, SIGNATURE, *SECRETS, "content-length"})
OWN_SERVER = "http gateway 0 / 0"  # in place of the address that a client has asked
Headers = list[tuple[str, str]]


class GatewayGone(Exception):
    """The other gateway can't be reached, or stopped answering."""


class BadSignature(Exception):
    """A request on the private listener that no gateway of this cluster has sent."""


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A request as its client sent it. `target` is the path with its query; `server` the address that was asked, as
    scheme, host, port, the path before its routes and 1 if a proxy has named it; `key_id` the caller's key."""

    method: str
    target: str
    headers: Headers
    body: bytes
    key_id: str
    server: str


def sign(secret: bytes, request: ForwardedRequest, target: str, now: float) -> dict[str, str]:
    """Return the headers by which the other gateway knows the request. `target` is the URL as it is sent."""
    values = (request.key_id, request.server, hashlib.sha256(request.body).hexdigest(), f"{now:.0f}")
    signed = dict(zip(SIGNED, values, strict=True))
    return {**signed, SIGNATURE: _signature(secret, request.method, target, signed)}


def verify(secret: bytes, method: str, target: str, headers: Mapping[str, str], now: float) -> None:
    """Check all but the body, whose digest is the header x-darkroom-body. Raises BadSignature."""
    signed = {name: headers.get(name, "") for name in SIGNED}
    expected = _signature(secret, method, target, signed)
    if not hmac.compare_digest(expected.encode(), headers.get(SIGNATURE, "").encode()):
        raise BadSignature("the signature is not this cluster's")
    if abs(now - float(signed["x-darkroom-sent"])) > MAX_AGE_S:
        raise BadSignature("it was sent too long ago")


def verify_body(headers: Mapping[str, str], body: bytes) -> None:
    """Check that the body is the one that was signed. Raises BadSignature."""
    if hashlib.sha256(body).hexdigest() != headers["x-darkroom-body"]:
        raise BadSignature("the body is another one")


def _signature(secret: bytes, method: str, target: str, signed: Mapping[str, str]) -> str:
    text = "\n".join([method, target, *(signed[name] for name in SIGNED)])
    return hmac.digest(secret, text.encode(), hashlib.sha256).hex()


class GatewayLink:
    """The connections to the other gateways. `close` after use."""

    def __init__(self, secret: str) -> None:
        self.secret = secret.encode()
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)  # an answer comes when the image is drawn
        self._client = httpx.AsyncClient(timeout=timeout, limits=httpx.Limits(max_connections=None), trust_env=False)

    async def close(self) -> None:
        """Close the connections to the other gateways."""
        await self._client.aclose()

    @asynccontextmanager
    async def send(self, url: str, request: ForwardedRequest, now: float) -> AsyncIterator["ForwardedAnswer"]:
        """Send a request, and return the other gateway's answer as it comes. Raises GatewayGone, also while it is
        read."""
        kept = [pair for pair in end_to_end_headers(request.headers) if pair[0] not in NOT_SENT]
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept]  # not all are ASCII
        built = self._client.build_request(
            request.method, f"{url.rstrip('/')}{request.target}", headers=headers, content=request.body
        )
        built.headers.update(sign(self.secret, request, built.url.raw_path.decode("latin-1"), now))
        try:
            response = await self._client.send(built, stream=True)
            try:
                yield ForwardedAnswer(
                    response.status_code, end_to_end_headers(response.headers.multi_items()), response
                )
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise GatewayGone(str(error) or type(error).__name__) from error

    async def request(self, url: str, method: str, path: str, body: bytes, now: float) -> tuple[int, Any]:
        """Ask another gateway a question of this one's own, and return the status and the JSON of the answer. Raises
        GatewayGone."""
        request = ForwardedRequest(method, path, [("content-type", "application/json")], body, "", OWN_SERVER)
        async with self.send(url, request, now) as answer:
            try:
                return answer.status, json.loads(await answer.response.aread())
            except ValueError as error:
                raise GatewayGone("it answers something else than JSON") from error


@dataclass(frozen=True, slots=True)
class ForwardedAnswer:
    """Status and headers of the answer, whose body is still to be read."""

    status: int
    headers: Headers
    response: httpx.Response


def end_to_end_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """Return the headers that are not about one connection."""
    return [(name.lower(), value) for name, value in headers if name.lower() not in HOP_BY_HOP]
