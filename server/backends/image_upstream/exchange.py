"""One request to an image server, and its answer: images, previews on the way, or an error."""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import httpx
from pydantic_core import to_json

from pipelines.protocol.images import Failed
from pipelines.protocol.upstream import ImageUpstream
from server.backends.event_objects import Json, json_object
from server.backends.image_upstream.answers import RETRY_S, UpstreamError, failure, failure_in_stream
from server.backends.image_upstream.requests import ImageExchange
from server.backends.upstream import UpstreamClient

MAX_IMAGE_BYTES = 64 * 1024**2  # of an image in base64: twice what 4K takes as PNG of noise
MAX_ERROR_BYTES = 256 * 1024
JOB_HEADER = "x-darkroom-job"
CONFLICT, UNAVAILABLE = 409, 503
TOKENS: Final = ("prompt_tokens", "negative_prompt_tokens")  # what of the prompts was read
OnPreview = Callable[[int, int, bytes], Awaitable[None]]  # image of the request, number of its preview, the file
OnBegun = Callable[[str], None]  # with the id of another Darkroom's call


class ExchangeResult(NamedTuple):
    """The images of one request, in order, and another Darkroom's counts of how its prompts were read."""

    images: Sequence[bytes]
    found: Json


@dataclass(frozen=True, slots=True)
class Files:
    """References and mask as PNG."""

    references: tuple[bytes, ...] = ()
    mask: bytes | None = None

    def parts(self) -> list[tuple[str, tuple[str, bytes, str]]]:
        """Return the parts of a multipart body, by the names that OpenAI's SDKs give them."""
        name = "image" if len(self.references) == 1 else "image[]"
        parts = [(name, (f"{i}.png", data, "image/png")) for i, data in enumerate(self.references)]
        return parts + ([("mask", ("mask.png", self.mask, "image/png"))] if self.mask is not None else [])


async def send(
    client: UpstreamClient, exchange: ImageExchange, files: Files, on_preview: OnPreview, on_begun: OnBegun
) -> ExchangeResult:
    """Send one request, and return its images. Raises UpstreamError.

    Cancelling it closes the connection, by which a server knows that nobody waits any more. Another Darkroom goes on
    all the same, since the request has an Idempotency-Key: see `cancel`.
    """
    upstream = exchange.upstream
    async with _transport_errors(upstream), _post(client, exchange, files) as response:
        limit = exchange.count * MAX_IMAGE_BYTES
        if response.status_code != httpx.codes.OK:
            raise await _refusal(upstream, response)
        if (job := response.headers.get(JOB_HEADER)) is not None:
            on_begun(job)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            return await _from_stream(upstream, response, exchange.count, limit, on_preview)
        body = await asyncio.to_thread(_parse, upstream, await _read(upstream, response, limit))
        return ExchangeResult(await asyncio.to_thread(_images, upstream, body, exchange.count), {})


async def cancel(client: UpstreamClient, exchange: ImageExchange, files: Files, job: str | None) -> None:
    """End another Darkroom's call. Without its id, the same request is sent once more, which joins it and tells the id.
    Raises httpx.HTTPError where that server is away."""
    if job is None:
        async with _post(client, exchange, files) as response:
            job = response.headers.get(JOB_HEADER)
    if job is not None:
        url = f"{exchange.upstream.base_url}/images/jobs/{quote(job, safe='')}/cancel"
        await client.http.post(url, headers=client.headers(exchange.upstream))


@asynccontextmanager
async def _post(client: UpstreamClient, exchange: ImageExchange, files: Files) -> AsyncIterator[httpx.Response]:
    headers = {**client.headers(exchange.upstream), "Idempotency-Key": exchange.idempotency_key}
    arguments: dict[str, Any]
    if files.references:
        path, arguments = "edits", {"data": _form(exchange.fields), "files": files.parts()}
    else:
        content = await asyncio.to_thread(to_json, exchange.fields)
        path, arguments = "generations", {"content": content}
        headers["Content-Type"] = "application/json"
    url = f"{exchange.upstream.base_url}/images/{path}"
    async with client.http.stream("POST", url, headers=headers, **arguments) as response:
        yield response


def _form(fields: Any) -> dict[str, str]:
    """Return the fields as texts, since a form has no others."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


@asynccontextmanager
async def _transport_errors(upstream: ImageUpstream) -> AsyncIterator[None]:
    """Raise transport errors as an UpstreamError. The address is for the log alone."""
    who = f"The server behind model `{upstream.model}`"
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        detail = f"{upstream.base_url}: {error}"
        failed = Failed("upstream_busy", f"{who} can't be reached now.", detail, retry_after_s=RETRY_S)
        raise UpstreamError(failed, away=True) from error
    except httpx.TimeoutException as error:
        raise UpstreamError(Failed("timed_out", f"{who} took too long.", upstream.base_url)) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        detail = f"{upstream.base_url}: {type(error).__name__}: {error}"
        failed = Failed("upstream_failed", f"{who} broke off; nothing was charged.", detail)
        raise UpstreamError(failed, cut=True) from error


async def _refusal(upstream: ImageUpstream, response: httpx.Response) -> UpstreamError:
    """Return the error of a status that is not 200. Those of proxies may be no JSON."""
    text = await _read(upstream, response, MAX_ERROR_BYTES)
    if (body := json_object(text)) is None:
        body = {"error": {"message": text.decode(errors="replace")[:200]}}
    failed, status = failure(upstream.model, response.status_code, response.headers, body), response.status_code
    return UpstreamError(failed, cut=status == CONFLICT and failed.code == "upstream_busy", away=status == UNAVAILABLE)


async def _from_stream(
    upstream: ImageUpstream, response: httpx.Response, count: int, limit: int, on_preview: OnPreview
) -> ExchangeResult:
    """Read another Darkroom's stream: previews, then each finished image."""
    images: dict[int, bytes] = {}
    found: Json = {}
    async for line in _lines(upstream, response, limit):
        if not line.startswith(b"data:"):
            continue  # a comment that keeps the connection alive, or the event's name, which the data have too
        event = await asyncio.to_thread(_parse, upstream, line.removeprefix(b"data:"))
        if "error" in event:
            raise UpstreamError(failure_in_stream(upstream.model, event))
        index, kind = event.get("image_index", 0), str(event.get("type"))
        data = await asyncio.to_thread(_decode, upstream, event.get("b64_json"))
        if kind.endswith(".partial_image"):
            await on_preview(index, event.get("partial_image_index", 0), data)
        elif kind.endswith(".completed"):
            images[index] = data
            found = _told_by(event.get("parameters"))
    if sorted(images) != list(range(count)):
        failed = Failed("upstream_failed", f"The server behind model `{upstream.model}` ended its stream early.")
        raise UpstreamError(failed, cut=True)
    return ExchangeResult([images[index] for index in range(count)], found)


def _told_by(parameters: object) -> Json:
    """Return the token counts among an answer's parameters, without malformed ones, and whether its seed decides
    nothing."""
    told = parameters if isinstance(parameters, dict) else {}
    counts = {name: _numbers(told[name]) for name in TOKENS if isinstance(told.get(name), dict)}
    whole = {name: numbers for name, numbers in counts.items() if "used" in numbers}
    return whole | ({"reproducible": False} if told.get("reproducible") is False else {})


def _numbers(counts: Json) -> Json:
    return {name: number for name, number in counts.items() if type(number) is int and number >= 0}


def _images(upstream: ImageUpstream, body: Json, count: int) -> Sequence[bytes]:
    items = body.get("data")
    if not isinstance(items, list) or len(items) != count or not all(isinstance(item, dict) for item in items):
        raise _invalid(upstream, f"where {count} images were asked for, {str(items)[:200]}")
    return [_decode(upstream, item.get("b64_json")) for item in items]


def _decode(upstream: ImageUpstream, text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError) as error:
        raise _invalid(upstream, "an image that is no base64") from error


def _parse(upstream: ImageUpstream, text: bytes) -> Json:
    if (value := json_object(text)) is None:
        raise _invalid(upstream, "something that is no JSON object")
    return value


async def _read(upstream: ImageUpstream, response: httpx.Response, limit: int) -> bytes:
    text = bytearray()
    async for chunk in response.aiter_bytes():
        text += chunk
        if len(text) > limit:
            raise _invalid(upstream, f"more than {limit} bytes")
    return bytes(text)


async def _lines(upstream: ImageUpstream, response: httpx.Response, limit: int) -> AsyncIterator[bytes]:
    """Yield the lines as they come, each of at most `limit` bytes. Raises UpstreamError for a longer one."""
    pending = bytearray()
    async for chunk in response.aiter_bytes():
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            yield bytes(pending + line)
            pending.clear()
        pending += rest
        if len(pending) > limit:
            raise _invalid(upstream, f"an event of more than {limit} bytes")


def _invalid(upstream: ImageUpstream, what: str) -> UpstreamError:
    message = f"The server behind model `{upstream.model}` sent an answer that can't be used; nothing was charged."
    return UpstreamError(Failed("upstream_failed", message, f"{upstream.base_url} sent {what}"))
