"""A client of other OpenAI-compatible servers: their connections and keys, and chats with models that don't run
here."""

import asyncio
import html
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic_core import from_json, to_json

from pipelines.protocol.upstream import Upstream
from server.backends.answer_bounds import AnswerTooLong, bound_answer
from server.backends.event_objects import json_object, read_objects
from server.backends.proxies import http_client
from server.backends.upstream_errors import KEY, QUOTA, UpstreamError, read_error
from server.errors import EngineFailure, Overloaded, StartError, TimedOut, retry_after_header

TRACE_CONTEXT = TraceContextTextMapPropagator()
CONNECT_TIMEOUT_S = 10.0
FORWARDED_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry")
RETRY_S = 5.0
RETRIED = frozenset({429, 503})  # statuses that say when to come back; where they do not, this server does
MAX_LINE = 200  # characters of an error that is no JSON
UNSEEN = re.compile(r"(?is)<(script|style)\b.*?(</\1\s*>|\Z)|<!--.*?(-->|\Z)")  # each begins one search at most
TAG = re.compile(r"<[^<>]*>")
Json = dict[str, Any]
BROKEN_OFF = frozenset({"abort", "aborted", "cancelled", "error"})  # reasons of answers that are not complete


@dataclass(frozen=True, slots=True)
class UpstreamResponse:
    """A complete JSON answer of an upstream. `error` is what it means, if it is no success."""

    status: int
    body: Json
    headers: Mapping[str, str]
    error: UpstreamError | None = None


class UpstreamClient:
    """The connections to all upstreams, and their API keys. `close` after use."""

    def __init__(
        self, upstreams: Iterable[Upstream], environment: Mapping[str, str], timeout_s: float, proxy: str | None = None
    ) -> None:
        """Open the client with the keys of these upstreams. Raises StartError as `load_keys` does."""
        self._environment = environment
        self._keys: dict[str, str] = {}
        self.load_keys(upstreams)
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        self.http = http_client(timeout, proxy)  # raises httpx's errors
        self.http.event_hooks = {"response": [bound_answer]}
        self.http.headers["Accept-Encoding"] = "identity"  # what is compressed has no bound before it is inflated

    def load_keys(self, upstreams: Iterable[Upstream]) -> None:
        """Read the API keys from the environment, at start or for a changed catalog. Raises StartError if one is
        missing."""
        for upstream in upstreams:
            name = upstream.api_key_env
            if name is not None and not self._environment.get(name):
                raise StartError(f"The catalog names {name} as the key of {upstream.base_url}, but {name} is not set.")
            if name is not None:
                self._keys[name] = self._environment[name]

    async def close(self) -> None:
        """Close the connections to all upstreams."""
        await self.http.aclose()

    async def complete(self, upstream: Upstream, body: Json) -> UpstreamResponse:
        """Send a chat completion, and return the answer. Raises ApiError when there is no answer that can be
        forwarded."""
        with _translate_errors(upstream):
            content = await asyncio.to_thread(to_json, body)
            response = await self.http.post(self._url(upstream), content=content, headers=self._json_headers(upstream))
            return await asyncio.to_thread(_parse_response, upstream, response)

    @asynccontextmanager
    async def stream(self, upstream: Upstream, body: Json) -> AsyncIterator[UpstreamResponse | AsyncIterator[Json]]:
        """Send a chat, and return its chunks, or the JSON answer that came instead of a stream: an error that is the
        first event, too. Raises ApiError, also between chunks."""
        with _translate_errors(upstream):
            content, headers = await asyncio.to_thread(to_json, body), self._json_headers(upstream)
            async with self.http.stream("POST", self._url(upstream), content=content, headers=headers) as response:
                if _is_stream(response):
                    chunks = _chunks(upstream, response)
                    first = await anext(chunks)
                    error = first.get("error")
                    yield _refusal(upstream, read_error(first, None), response) if error else _prepend(first, chunks)
                else:
                    await response.aread()
                    yield await asyncio.to_thread(_parse_response, upstream, response)

    def _url(self, upstream: Upstream) -> str:
        return f"{upstream.base_url}/chat/completions"

    def headers(self, upstream: Upstream) -> dict[str, str]:
        """Return the headers with the upstream's key, and the trace of the call that is running."""
        headers = {"Authorization": f"Bearer {self._keys[upstream.api_key_env]}"} if upstream.api_key_env else {}
        TRACE_CONTEXT.inject(headers)  # the other server's spans belong to the caller's trace, as ours do
        return headers

    def _json_headers(self, upstream: Upstream) -> dict[str, str]:
        return {"Content-Type": "application/json", **self.headers(upstream)}


@contextmanager
def _translate_errors(upstream: Upstream) -> Iterator[None]:
    """Raise transport errors as an ApiError. The upstream's address is in the log's traceback only."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise Overloaded(f"The server behind model `{upstream.model}` can't be reached now.", RETRY_S) from error
    except httpx.TimeoutException as error:
        raise TimedOut(f"The server behind model `{upstream.model}` took too long.") from error
    except AnswerTooLong as error:
        message = f"The server behind model `{upstream.model}` sent too much: {error}."
        raise EngineFailure(message, code="upstream_failed") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        message = f"The server behind model `{upstream.model}` failed: {type(error).__name__}."
        raise EngineFailure(message, code="upstream_failed") from error


def _parse_response(upstream: Upstream, response: httpx.Response) -> UpstreamResponse:
    """Return the answer. Raises EngineFailure where nothing of it can be passed on."""
    if response.is_success:
        body = json_object(response.content)
        if body is None:
            raise _no_object(upstream)
        body = _with_error("", body)
        if body.get("error") and not body.get("choices"):  # some say so in the body alone
            return _refusal(upstream, read_error(body, None), response)
        return UpstreamResponse(response.status_code, body, _retry_headers(response.headers))
    if response.status_code < 400:
        message = f"The server behind model `{upstream.model}` redirects to another address; its operator can fix it."
        raise EngineFailure(message, code="upstream_failed")
    return _refusal(upstream, read_error(_error_content(upstream, response), response.status_code), response)


def _refusal(upstream: Upstream, error: UpstreamError, response: httpx.Response) -> UpstreamResponse:
    """Return an error as an answer. Raises EngineFailure for one that is about this server's key."""
    if error.code == KEY.code:
        raise refused_key(upstream)
    headers = _retry_headers(response.headers)
    if error.status in RETRIED and not {"retry-after", "retry-after-ms"} & headers.keys():
        headers["retry-after"] = retry_after_header(RETRY_S)  # it does not say so, and is asked again soon
    if error.code == QUOTA.code:
        headers["x-should-retry"] = "false"
    return UpstreamResponse(error.status, error.body(), headers, error)


def refused_key(upstream: Upstream) -> EngineFailure:
    """Return the error for an upstream that refuses this server's key, which is not the caller's."""
    message = f"The server behind model `{upstream.model}` refuses this server's key; its operator can fix it."
    return EngineFailure(message, code=KEY.code)


def _is_stream(response: httpx.Response) -> bool:
    """Return whether an answer is read as events. Some servers name another type, or none."""
    content_type = response.headers.get("content-type", "")
    return response.is_success and not any(kind in content_type for kind in ("/json", "/html"))


def _retry_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that say when to come back, without those that are no words."""
    found = {name: headers[name] for name in FORWARDED_HEADERS if name in headers}
    return {name: value for name, value in found.items() if value.isascii() and value.isprintable()}


def _error_content(upstream: Upstream, response: httpx.Response) -> Any:
    """Return the JSON of an error; of a proxy's page, which the upstream may never have seen, a sentence."""
    try:
        content = from_json(response.content)
    except ValueError:
        content = None
    if isinstance(content, dict | list) and content:
        return content
    said = f"answered {response.status_code} {response.reason_phrase}".strip()
    line = _first_line(response.text)
    return {"message": f"The server behind model `{upstream.model}` {said}{f': {line}' if line else '.'}"}


def _first_line(text: str) -> str:
    """Return the first line that a reader of the page would see."""
    shown = html.unescape(TAG.sub("\n", UNSEEN.sub("", text)))
    return next((line.strip()[:MAX_LINE] for line in shown.splitlines() if line.strip()), "")


async def _prepend(first: Json, chunks: AsyncIterator[Json]) -> AsyncIterator[Json]:
    yield first
    async for chunk in chunks:
        yield chunk


async def _chunks(upstream: Upstream, response: httpx.Response) -> AsyncIterator[Json]:
    """Yield the JSON of each event, up to [DONE]. A stream is whole without it once every choice of it has its finish
    reason. Raises EngineFailure for one that ends before, and for one without a choice."""
    running: set[Any] = set()
    finished: set[Any] = set()
    try:
        async for name, data in read_objects(response.aiter_bytes()):
            if data == "[DONE]" and running | finished:
                return
            if isinstance(data, str):
                raise _no_object(upstream) if data != "[DONE]" else _ended_early(upstream)
            yield _with_error(name, data)
            for index, ended in _choices(data):
                (finished if ended else running).add(index)
    except httpx.RemoteProtocolError:  # the connection was closed without the last, empty piece of the body
        if not finished or running - finished:
            raise
    if not finished or running - finished:
        raise _ended_early(upstream)


def _with_error(name: str, body: Json) -> Json:
    """Return a chunk or a completion; where its event's name, its own fields or a choice say that it is an error, with
    that as its `error`."""
    if not body.keys() & {"error", "choices"} and (name == "error" or _is_error(body)):
        return {"error": body}
    choices = body.get("choices")
    errors = [_error_of(each) for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
    return {"error": next(filter(None, errors))} if any(errors) else body


def _is_error(body: Json) -> bool:
    """Return whether what has no choices is an error, as SGLang and FastAPI write theirs."""
    return "error" in (body.get("object"), body.get("type")) or bool(body.get("message") or body.get("detail"))


def _error_of(choice: Json) -> Any:
    """Return the error of a choice that its server broke off."""
    reason = choice.get("finish_reason")
    broken = isinstance(reason, str) and reason.lower() in BROKEN_OFF
    said = {"message": f"The server behind the model broke the answer off: {reason}."} if broken else None
    return choice.get("error") or said


def _ended_early(upstream: Upstream) -> EngineFailure:
    return EngineFailure(f"The server behind model `{upstream.model}` ended its stream early.", code="upstream_failed")


def _choices(chunk: Json) -> Iterator[tuple[Any, bool]]:
    """Yield the index of each choice of a chunk, and whether the choice ends with it."""
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            index = choice.get("index")
            yield index if isinstance(index, int) else 0, bool(choice.get("finish_reason"))


def _no_object(upstream: Upstream) -> EngineFailure:
    message = f"The server behind model `{upstream.model}` sent something that is no JSON object."
    return EngineFailure(message, code="upstream_failed")
