"""The values that routes take from a request: the services, its API key, and the wishes in its headers."""

from collections.abc import Iterable, Sequence
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.requests import HTTPConnection

from server.accounts.keys import Key, authenticate, find_usable_key, why_refused
from server.errors import BadRequest, Unauthorized
from server.flows.retries import RetryInfo
from server.http.dialect import Dialect, dialects_of
from server.http.public_address import own_address
from server.services import Services
from server.telemetry.call_trace import current_trace

MAX_IDEMPOTENCY_KEY = 255
SESSION_COOKIE = "darkroom-session"
FORWARDED = "darkroom.forwarded"  # in the ASGI scope of what another gateway has sent: the id of the caller's key
LONGEST_HEADER = 500  # of names of fields
KEY_HEADER = "api-key"  # what Azure's clients send


class KeyScheme(HTTPBearer):
    """Describes in /openapi.json how a key is sent. `caller` and `operator` read it, from other places too."""

    async def __call__(self, request: HTTPConnection) -> None:
        """Do nothing: the scheme is there for /openapi.json alone."""


API_KEY = KeyScheme(scheme_name="api_key", description="A key of `darkroom keys create`.")


async def services(request: Request) -> Services:
    """Return the services of the app."""
    app_services: Services = request.app.state.services
    return app_services


REASONS = {
    "unknown": "is unknown here",
    "expired": "has expired",
    "revoked": "was revoked",
}
ServicesDep = Annotated[Services, Depends(services)]


async def caller(request: Request, services: ServicesDep, _: Annotated[None, Depends(API_KEY)] = None) -> Key:
    """Return the key whose secret the request has or, without one, that of the console's session. A forwarded request
    has the id of the key that the server before this one has found. Raises Unauthorized."""
    database = services.stores.database
    if FORWARDED in request.scope:
        found = await database.in_reader(find_usable_key, database, request.scope[FORWARDED])
        if found is None:
            raise Unauthorized("This API key has just been revoked.", code="invalid_api_key")
        current_trace().key_id = found.id
        return found
    named = "authorization" in request.headers or find_secret(request) is not None
    if not named and (key := await _session_key(request, services)):
        current_trace().key_id = key.id
        return key
    secret = bearer(request)
    key = await database.in_reader(authenticate, database, secret)
    if key is None:
        why = await database.in_reader(why_refused, database, secret)
        masked = f"{secret[:6]}***{secret[-4:]}" if len(secret) > 16 else "***"
        raise Unauthorized(
            f"Incorrect API key provided: {masked}. It {REASONS[why]}. Who runs this server makes keys, "
            "with `darkroom keys create` or in the console.",
            code="invalid_api_key",
        )
    current_trace().key_id = key.id
    return key


Caller = Annotated[Key, Depends(caller)]


def bearer(request: Request) -> str:
    """Return the caller's secret, from wherever it is. Raises Unauthorized if there is none."""
    secret = find_secret(request)
    if secret is None:
        raise Unauthorized(
            "You didn't provide an API key. Send it in the Authorization header: 'Authorization: Bearer YOUR_KEY'."
        )
    return secret


def find_secret(request: Request) -> str | None:
    """Return the secret of the Authorization header, else of a dialect's place for it."""
    scheme, _, secret = request.headers.get("authorization", "").strip().partition(" ")
    dialects = dialects_of(request.scope)
    sent = [secret] if scheme.lower() == "bearer" else []
    sent += [request.headers.get(name, "") for name in key_headers(dialects)]
    for path, name in filter(None, (dialect.key_query for dialect in dialects)):
        if request.url.path.startswith(path):
            sent.append(request.query_params.get(name, ""))
    return next((text.strip() for text in sent if text.strip()), None)


def key_headers(dialects: Sequence[Dialect]) -> list[str]:
    """Return the names of the headers in which a key may come, beside Authorization."""
    return [*(name for dialect in dialects for name in dialect.key_headers), KEY_HEADER]


async def _session_key(request: Request, services: Services) -> Key | None:
    """Return the key of the console's session, if the request has one."""
    cookie = request.cookies.get(SESSION_COOKIE, "")
    if not cookie or not is_of_console(request, services):
        return None
    sessions, database = services.stores.console_sessions, services.stores.database
    key_id = await sessions.in_reader(sessions.subject, cookie)
    return await database.in_reader(find_usable_key, database, key_id) if key_id else None


def is_of_console(request: Request, services: Services) -> bool:
    """Return whether a cookie may stand for a key. A page of another origin may make the browser send the cookie, if it
    is on the same machine: so a request that changes something is taken from the console's own page only."""
    if request.method == "GET":
        return True
    origin = urlsplit(request.headers.get("origin", "")).netloc
    named = {urlsplit(url).netloc for url in services.settings.public_urls}  # a proxy may not pass the port on
    return origin in {request.headers.get("host"), *named}


def public_base(request: Request, services: Services) -> str:
    """Return the URL below which clients find results, without a trailing slash."""
    if services.settings.cdn_url:
        return services.settings.cdn_url.rstrip("/")
    return f"{own_address(request, services.settings.public_urls)}/cdn"


def content_type_of(request: Request) -> str:
    """Return the body's content type in lower case, without parameters; "" if there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def read_retry_info(request: Request, fingerprint: str) -> RetryInfo:
    """Read from the headers whether the request repeats another. Raises BadRequest for an invalid Idempotency-Key."""
    count = request.headers.get("x-stainless-retry-count")
    retry_count = int(count) if count is not None and count.isdecimal() and len(count) < 10 else None
    return RetryInfo(fingerprint, idempotency_key_of(request), retry_count, forwarded=FORWARDED in request.scope)


def query_flag(name: str, text: str) -> bool:
    """Read a boolean of the query, as Python, JavaScript and people write it; empty is false. Raises BadRequest."""
    value = text.strip().lower()
    if value in {"true", "1", "yes", "on"}:
        return True
    if value in {"false", "0", "no", "off", ""}:
        return False
    raise BadRequest(f"Invalid value: '{text[:40]}'. Supported values are: 'true', 'false'.", param=name)


def wants_async(request: Request) -> bool:
    """Return whether the Prefer header (RFC 7240) has respond-async."""
    preferences = ",".join(request.headers.getlist("prefer")).split(",")
    return any(preference.partition(";")[0].strip().lower() == "respond-async" for preference in preferences)


def ignored_header(fields: Iterable[str]) -> dict[str, str]:
    """Return the header that names the fields of a request that had no effect, except names that no header can hold."""
    named = ", ".join(name for name in fields if name.isascii() and name.isprintable() and "," not in name)
    if len(named) > LONGEST_HEADER:
        named = f"{named[:LONGEST_HEADER].rpartition(', ')[0]}, ...".lstrip(", ")
    return {"x-darkroom-ignored": named} if named else {}


def truncated_header(text: str) -> dict[str, str]:
    """Return the header that names the parts of a call's prompts that were not read; empty if there are none."""
    return {"x-darkroom-truncated": text} if text else {}


def name_ignored(headers: dict[str, str], fields: Iterable[str]) -> dict[str, str]:
    """Return the headers, with these fields named as ignored too."""
    before = headers.get("x-darkroom-ignored", "")
    return headers | ignored_header([*filter(None, before.split(", ")), *fields])


def wants_keepalive(request: Request, key: Key) -> bool:
    """Return whether spaces may precede a JSON answer: by the header `X-Keepalive: 1` or 0, else the key's setting."""
    value = request.headers.get("x-keepalive", "").strip().lower()
    return key.keepalive if not value else value not in {"0", "false", "no"}


def idempotency_key_of(request: Request) -> str | None:
    """Return the header's value, bare or as the quoted string of the IETF draft. Raises BadRequest."""
    raw = request.headers.get("idempotency-key")
    if raw is None:
        return None
    key = raw.strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 0 < len(key) <= MAX_IDEMPOTENCY_KEY or not key.isprintable():
        message = f"The Idempotency-Key must have 1 to {MAX_IDEMPOTENCY_KEY} printable characters."
        raise BadRequest(message, code="invalid_idempotency_key")
    return key
