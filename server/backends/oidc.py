"""A client of the organisation's OpenID Connect provider: the authorization code flow with PKCE, state and nonce.

The library has what the protocol says of addresses, challenges, client authentication and the claims of a token; the
requests go by the connections of all upstreams, and so by the rule of proxies. The provider's description and keys are
kept for an hour; keys are read again at once for a token that none of them has signed, since providers change them.
"""

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import httpx
import structlog

from pipelines.protocol.machine import extra_command
from server.errors import StartError

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

KEPT_S = 3600.0
RETRY_S = 5.0  # after the provider did not answer
TIMEOUT_S = 10.0
LEEWAY_S = 120  # by which the clocks of the provider and this machine may differ
NEEDED = ("authorization_endpoint", "token_endpoint", "jwks_uri")
SIGNED_BY = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"]

log = structlog.stdlib.get_logger("darkroom.sign_in")
Reason = Literal["unreachable", "late", "refused", "invalid", "no_group", "ended"]
Json = dict[str, Any]


class SignInFailed(Exception):
    """Nobody is signed in. `reason` is for the person; the message is for the log.

    unreachable: the provider does not answer; late: the answer belongs to no attempt of this browser; refused: by the
    provider; invalid: the provider's answer is not to be believed; no_group: the account is in no group that may use
    this server; ended: the person's key is revoked or has expired.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to sign in. All that ties the provider's answer to the browser follows from `secret`, of 256 random
    bits, which the browser keeps in a cookie until then."""

    secret: str

    @classmethod
    def new(cls) -> "Attempt":
        """Begin an attempt."""
        return cls(secrets.token_urlsafe(32))

    def value(self, name: Literal["state", "nonce", "verifier"]) -> str:
        """Return the attempt's state, nonce or PKCE verifier: 43 characters, none of which says anything of another."""
        digest = hashlib.sha256(f"{name}:{self.secret}".encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class Client:
    """This server as the provider knows it. Without a secret it is a public client, which PKCE alone protects."""

    issuer: str
    id: str
    secret: str | None
    scopes: tuple[str, ...]


class OidcProvider:
    """The provider, as it describes itself, and what is asked of it."""

    def __init__(self, client: Client, http: httpx.AsyncClient) -> None:
        """Raise StartError if the library is not installed."""
        try:
            import authlib  # noqa: F401  # its parts are imported where they are used
        except ImportError as error:
            raise StartError(f"DARKROOM_OIDC_ISSUER needs more packages: {extra_command('oidc')}") from error
        self._client = client
        self._http = http
        self._lock = asyncio.Lock()
        self._metadata: Json = {}
        self._keys: KeySet | None = None
        self._read_at = self._failed_at = -KEPT_S

    async def authorization_url(self, attempt: Attempt, redirect_uri: str) -> str:
        """Return the address at which a person signs in. Raises SignInFailed."""
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        metadata = await self._provider_metadata()
        url: str = prepare_grant_uri(
            metadata["authorization_endpoint"],
            self._client.id,
            "code",
            redirect_uri=redirect_uri,
            scope=" ".join(self._client.scopes),
            state=attempt.value("state"),
            nonce=attempt.value("nonce"),
            code_challenge=create_s256_code_challenge(attempt.value("verifier")),
            code_challenge_method="S256",
        )
        return url

    async def claims(self, answer: Mapping[str, str], attempt: Attempt, redirect_uri: str) -> Json:
        """Return what the provider says of the person who has signed in, by the query of its answer: the claims of the
        ID token, and those that only its userinfo endpoint has. Raises SignInFailed."""
        mine = attempt.value("state").encode()
        if not attempt.secret or not secrets.compare_digest(answer.get("state", "").encode(), mine):
            raise SignInFailed("late", "The state is not that of this browser's attempt.")
        if "code" not in answer:
            raise SignInFailed("refused", f"The provider said: {answer.get('error', 'no code')[:200]}")
        metadata = await self._provider_metadata()
        if answer.get("iss", metadata["issuer"]) != metadata["issuer"]:  # RFC 9207
            raise SignInFailed("invalid", f"The answer is of {answer['iss'][:200]}.")
        tokens = await self._tokens(metadata, answer["code"], attempt, redirect_uri)
        claims = await self._verified(tokens, attempt)
        return {**await self._userinfo(metadata, tokens, str(claims["sub"])), **claims}

    async def logout_url(self, back: str) -> str | None:
        """Return the address at which a person signs out of the provider and comes back; None if it has none, or does
        not answer."""
        from authlib.common.urls import add_params_to_uri

        try:
            metadata = await self._provider_metadata()
        except SignInFailed:
            return None
        if not (endpoint := metadata.get("end_session_endpoint")):
            return None
        params = [("client_id", self._client.id), ("post_logout_redirect_uri", back)]
        url: str = add_params_to_uri(endpoint, params)
        return url

    async def _tokens(self, metadata: Json, code: str, attempt: Attempt, redirect_uri: str) -> Json:
        from authlib.oauth2.auth import ClientAuth
        from authlib.oauth2.rfc6749.parameters import prepare_token_request

        body = prepare_token_request(
            "authorization_code", redirect_uri=redirect_uri, code=code, code_verifier=attempt.value("verifier")
        )
        known = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        method = "client_secret_post" if "client_secret_post" in known else "client_secret_basic"
        auth = ClientAuth(self._client.id, self._client.secret, method if self._client.secret else "none")
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        url, headers, body = auth.prepare("POST", metadata["token_endpoint"], headers, body)
        tokens = await self._request("POST", url, headers=headers, content=body)
        if not isinstance(tokens.get("id_token"), str):
            raise SignInFailed("invalid", "The provider has sent no ID token.")
        return tokens

    async def _verified(self, tokens: Json, attempt: Attempt) -> Json:
        """Return the claims of the ID token, whose signature, issuer, audience, nonce and times are right."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            try:
                token = jwt.decode(tokens["id_token"], self._keys or await self._read_keys(), algorithms=SIGNED_BY)
            except (JoseError, ValueError):  # by none of the keys that are known
                token = jwt.decode(tokens["id_token"], await self._read_keys(), algorithms=SIGNED_BY)
        except (JoseError, ValueError) as error:
            raise SignInFailed("invalid", f"The ID token can't be verified: {error}") from error
        options = {
            "iss": {"essential": True, "value": self._metadata["issuer"]},
            "aud": {"essential": True, "value": self._client.id},
            "sub": {"essential": True},  # and not empty
        }
        params = {"nonce": attempt.value("nonce"), "client_id": self._client.id, **_access(tokens)}
        claims = CodeIDToken(token.claims, token.header, options, params)
        try:
            claims.validate(now=int(time.time()), leeway=LEEWAY_S)
        except (JoseError, ValueError) as error:
            raise SignInFailed("invalid", f"The ID token is refused: {error}") from error
        return dict(claims)

    async def _userinfo(self, metadata: Json, tokens: Json, subject: str) -> Json:
        """Return what the provider says beside the ID token, nothing if it has no endpoint for that."""
        access, endpoint = _access(tokens), metadata.get("userinfo_endpoint")
        if not access or not endpoint:
            return {}
        said = await self._request("GET", endpoint, headers={"Authorization": f"Bearer {access['access_token']}"})
        if said.get("sub") != subject:
            raise SignInFailed("invalid", "The userinfo endpoint speaks of somebody else.")
        return said

    async def _provider_metadata(self) -> Json:
        """Return the provider's description of itself. One that is old is used while the provider does not answer."""
        async with self._lock:
            now = time.monotonic()
            failed = now - self._failed_at < RETRY_S
            if self._metadata and (failed or now - self._read_at < KEPT_S):
                return self._metadata
            if failed:
                raise SignInFailed("unreachable", "The provider did not answer a moment ago.")
            try:
                self._metadata = await self._discover()
                self._read_at = now
                self._keys = None
            except SignInFailed as error:
                self._failed_at = now
                if not self._metadata:
                    raise
                log.warning("the sign-in provider does not answer; what is known of it is used", error=str(error))
            return self._metadata

    async def _discover(self) -> Json:
        issuer = self._client.issuer
        found = await self._request("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if str(found.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
            raise SignInFailed("invalid", f"The provider at {issuer} calls itself {found.get('issuer')!r}.")
        if missing := [name for name in NEEDED if not isinstance(found.get(name), str)]:
            raise SignInFailed("invalid", f"The description of {issuer} lacks {', '.join(missing)}.")
        return found

    async def _read_keys(self) -> "KeySet":
        from joserfc.jwk import KeySet

        found = await self._request("GET", (await self._provider_metadata())["jwks_uri"])
        usable = [key for key in found.get("keys", []) if key.get("use", "sig") == "sig"]
        try:
            self._keys = KeySet.import_key_set({"keys": usable})
        except (ValueError, KeyError, TypeError) as error:
            raise SignInFailed("invalid", f"The provider's keys can't be read: {error}") from error
        return self._keys

    async def _request(self, method: str, url: str, **sent: Any) -> Json:
        try:
            response = await self._http.request(method, url, timeout=TIMEOUT_S, **sent)
            found = response.json() if response.status_code < 500 else None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SignInFailed("unreachable", f"{url}: {str(error) or type(error).__name__}") from error
        except ValueError:
            found = None
        if response.status_code >= 500 or (found is None and response.status_code != 200):
            raise SignInFailed("unreachable", f"{url} answers {response.status_code}.")
        if response.status_code != 200:
            raise SignInFailed("refused", f"{url} answers {response.status_code}: {str(found)[:300]}")
        if not isinstance(found, dict):
            raise SignInFailed("invalid", f"{url} answers with no JSON object.")
        return found


def _access(tokens: Json) -> Json:
    token = tokens.get("access_token")
    return {"access_token": token} if isinstance(token, str) and token else {}
