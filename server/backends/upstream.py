"""Other servers that speak OpenAI's API, for chat models that don't run here."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from pipelines.catalog.chat import Upstream
from server.errors import EngineFailure, Overloaded, StartError, TimedOut

CONNECT_TIMEOUT_S = 10.0
PASSED_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry")
RETRY_S = 5.0
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the upstream answered, whole: success or not."""

    status: int
    body: Json
    headers: Mapping[str, str]


class Upstreams:
    """The connections to them, and their keys. `close` after use."""

    def __init__(self, known: Iterable[Upstream], environment: Mapping[str, str], timeout_s: float) -> None:
        """Raises StartError as `take` does."""
        self._environment = environment
        self._keys: dict[str, str] = {}
        self.take(known)
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        self._client = httpx.AsyncClient(timeout=timeout, limits=httpx.Limits(max_connections=None), trust_env=False)

    def take(self, known: Iterable[Upstream]) -> None:
        """Read the keys of these, at start or from a changed catalog. Raises StartError for one that is not set."""
        for upstream in known:
            name = upstream.api_key_env
            if name is not None and not self._environment.get(name):
                raise StartError(f"chat.toml wants the key of {upstream.base_url} in {name}, which is not set.")
            if name is not None:
                self._keys[name] = self._environment[name]

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def ask(self, upstream: Upstream, body: Json) -> Answer:
        """One answer. Raises ApiError when there is none that can be passed on."""
        with _translated(upstream):
            answer = await self._client.post(self._url(upstream), json=body, headers=self._headers(upstream))
            return _whole(upstream, answer)

    @asynccontextmanager
    async def stream(self, upstream: Upstream, body: Json) -> AsyncIterator[Answer | AsyncIterator[Json]]:
        """The chunks, or the answer that came instead of a stream. Raises ApiError, also on the way."""
        with _translated(upstream):
            request = self._client.stream("POST", self._url(upstream), json=body, headers=self._headers(upstream))
            async with request as answer:
                if answer.headers.get("content-type", "").startswith("text/event-stream"):
                    yield _chunks(upstream, answer)
                else:
                    await answer.aread()
                    yield _whole(upstream, answer)

    def _url(self, upstream: Upstream) -> str:
        return f"{upstream.base_url}/chat/completions"

    def _headers(self, upstream: Upstream) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._keys[upstream.api_key_env]}"} if upstream.api_key_env else {}


@contextmanager
def _translated(upstream: Upstream) -> Iterator[None]:
    """What goes wrong on the way becomes an answer. The address stays in the log's traceback alone."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise Overloaded(f"The server behind model `{upstream.model}` can't be reached now.", RETRY_S) from error
    except httpx.TimeoutException as error:
        raise TimedOut(f"The server behind model `{upstream.model}` took too long.") from error
    except httpx.HTTPError as error:
        message = f"The server behind model `{upstream.model}` failed: {type(error).__name__}."
        raise EngineFailure(message, code="upstream_failed") from error


def _whole(upstream: Upstream, answer: httpx.Response) -> Answer:
    if answer.status_code in {401, 403}:  # our key is meant, not the caller's
        message = f"The server behind model `{upstream.model}` refuses this server's key; its operator can mend it."
        raise EngineFailure(message, code="upstream_refused")
    headers = {name: answer.headers[name] for name in PASSED_HEADERS if name in answer.headers}
    body = _object(upstream, answer.content)
    return Answer(answer.status_code, body if answer.is_success else _error_body(answer, body), headers)


def _error_body(answer: httpx.Response, body: Json) -> Json:
    """The upstream's error in the shape of ours: others leave fields out, or have another body altogether."""
    error = body.get("error", body.get("detail", body))
    told = error if isinstance(error, dict) else {"message": error}
    message = told.get("message")
    return {
        "error": {
            "message": message if isinstance(message, str) else json.dumps(error),
            "type": str(told.get("type") or ("invalid_request_error" if answer.is_client_error else "server_error")),
            "param": told.get("param"),
            "code": told.get("code"),
        }
    }


async def _chunks(upstream: Upstream, answer: httpx.Response) -> AsyncIterator[Json]:
    """Each event's JSON, up to [DONE]. A stream that ends without it was cut. Raises EngineFailure."""
    async for line in answer.aiter_lines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if data:
            yield _object(upstream, data)
    message = f"The server behind model `{upstream.model}` ended its stream early."
    raise EngineFailure(message, code="upstream_failed")


def _object(upstream: Upstream, text: str | bytes) -> Json:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        message = f"The server behind model `{upstream.model}` sent something that is no JSON object."
        raise EngineFailure(message, code="upstream_failed")
    return value
