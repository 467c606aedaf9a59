"""An OpenID Connect provider on a real socket in the test's own event loop: it signs everybody in at once, checks what
the protocol lets it check, and errs where a test says so. `tests/node/oidc.mjs` has one that others have written."""

import asyncio
import hashlib
import secrets
import socket
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "darkroom", "s3cret+/="


def new_key(name: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig", "alg": "RS256"})


@dataclass
class Provider:
    port: int
    person: dict[str, Any] = field(default_factory=lambda: {"sub": "248289761001"})  # who signs in
    key: RSAKey = field(default_factory=lambda: new_key("first"))
    skew_s: int = 0  # of its clock
    changes: dict[str, Any] = field(default_factory=dict)  # of the claims of its tokens
    denies: bool = False
    userinfo: dict[str, Any] | None = None  # None: it has no such endpoint
    asked: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def describe(self, request: Request) -> Response:
        self.asked.append("description")
        more = {} if self.userinfo is None else {"userinfo_endpoint": f"{self.url}/userinfo"}
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
                "end_session_endpoint": f"{self.url}/logout",
                "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
                **more,
            }
        )

    async def keys(self, request: Request) -> Response:
        self.asked.append("keys")
        return JSONResponse(KeySet([self.key]).as_dict(private=False))

    async def authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        assert (query["client_id"], query["response_type"], query["code_challenge_method"]) == (CLIENT, "code", "S256")
        if self.denies:
            answer = {"error": "access_denied"}
        else:
            answer = {"code": secrets.token_urlsafe(16), "iss": self.url}
            self.codes[answer["code"]] = query
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode({**answer, 'state': query['state']})}", 302)

    async def token(self, request: Request) -> Response:
        form = await request.form()
        asked = self.codes.pop(str(form["code"]), None)
        challenge = urlsafe_b64encode(hashlib.sha256(str(form["code_verifier"]).encode()).digest()).rstrip(b"=")
        client = (str(form["client_id"]), str(form["client_secret"]))
        if "authorization" in request.headers:
            client = tuple(b64decode(request.headers["authorization"][6:]).decode().split(":"))
        if client != (CLIENT, SECRET):
            return JSONResponse({"error": "invalid_client"}, 401)
        if (
            asked is None
            or asked["code_challenge"] != challenge.decode()
            or asked["redirect_uri"] != form["redirect_uri"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time()) + self.skew_s
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"], **self.person}
        signed = jwt.encode({"alg": "RS256", "kid": self.key.kid}, {**claims, **self.changes}, self.key)
        return JSONResponse({"access_token": "access", "token_type": "Bearer", "id_token": signed})

    async def say_who(self, request: Request) -> Response:
        assert request.headers["authorization"] == "Bearer access"
        return JSONResponse({"sub": self.person["sub"], **(self.userinfo or {})})


@asynccontextmanager
async def oidc_provider() -> AsyncIterator[Provider]:
    """Serves until the block ends."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        provider = Provider(listener.getsockname()[1])
        routes = [
            Route("/.well-known/openid-configuration", provider.describe),
            Route("/keys", provider.keys),
            Route("/authorize", provider.authorize),
            Route("/token", provider.token, methods=["POST"]),
            Route("/userinfo", provider.say_who),
        ]
        config = uvicorn.Config(Starlette(routes=routes), lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        running = uvicorn.Server(config)
        running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        task = asyncio.create_task(running.serve([listener]))
        try:
            yield provider
        finally:
            running.should_exit = True
            await asyncio.wait({task}, timeout=30)
