"""How many tokens the models of other servers read: what those servers' own lists of models say."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import structlog

from pipelines.protocol.upstream import Upstream
from server.backends.event_objects import json_object
from server.backends.upstream import UpstreamClient

log = structlog.stdlib.get_logger("darkroom.chat")

TIMEOUT_S = 3.0
KEPT_S = 600.0  # what a server said
KEPT_FAILURE_S = 60.0
MAX_BYTES = 8 * 1024**2  # of a list: a router has hundreds of models
MAX_DEPTH = 4  # of a model's fields within fields
# By what servers call it, the surest first: what a server was started with, then what the model could read
FIELDS = (
    "max_model_len", "loaded_context_length", "n_ctx", "max_input_tokens", "context_length", "context_window",
    "max_context_window_tokens", "max_context_length", "max_total_tokens", "inputTokenLimit", "n_ctx_train",
)  # fmt: skip
Json = dict[str, Any]
Address = tuple[str, str | None]  # of a server, and the environment variable with its key


@dataclass(frozen=True, slots=True)
class _Listed:
    """A server's list of models, None if it gave none, and until when it is believed."""

    models: list[Json] | None
    until: float


class UpstreamContexts:
    """Asks other servers for their lists, and remembers them. One for the whole server."""

    def __init__(self, client: UpstreamClient) -> None:
        self._client = client
        self._lists: dict[Address, _Listed] = {}
        self._locks: defaultdict[Address, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def read(self, upstreams: Collection[Upstream]) -> Mapping[Upstream, int | None]:
        """Return the most tokens of prompt and answer that each model reads, None where its server does not say or
        does not answer within seconds."""
        asked = {(each.base_url, each.api_key_env): each for each in upstreams}
        lists = dict(zip(asked, await asyncio.gather(*map(self._models, asked.values())), strict=True))
        return {each: _context(lists[each.base_url, each.api_key_env], each.model) for each in upstreams}

    async def _models(self, upstream: Upstream) -> list[Json] | None:
        address = (upstream.base_url, upstream.api_key_env)
        async with self._locks[address]:
            known = self._lists.get(address)
            if known is None or known.until < time.monotonic():
                models = await self._ask(upstream)
                kept_s = KEPT_FAILURE_S if models is None else KEPT_S
                known = self._lists[address] = _Listed(models, time.monotonic() + kept_s)
            return known.models

    async def _ask(self, upstream: Upstream) -> list[Json] | None:
        """Return the server's list, None if there is none to read."""
        content = b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                url, headers = f"{upstream.base_url}/models", self._client.headers(upstream)
                async with self._client.http.stream("GET", url, headers=headers) as response:
                    response.raise_for_status()
                    async for piece in response.aiter_bytes():
                        content += piece
                        if len(content) > MAX_BYTES:
                            return None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            log.info("a list of models was not read", upstream=upstream.base_url, error=type(error).__name__)
            return None
        listed = (json_object(content) or {}).get("data")
        return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else None


def _context(models: list[Json] | None, name: str) -> int | None:
    """Return what the list says of the model of this name. A server with one model may give it another name."""
    named = [each for each in models or () if each.get("id") == name] or (models if models and len(models) == 1 else [])
    found = dict(_integers(named[0], MAX_DEPTH)) if named else {}
    return next((found[field] for field in FIELDS if found.get(field, 0) > 0), None)


def _integers(value: Any, depth: int) -> Iterable[tuple[str, int]]:
    """Yield the fields of an object that are integers, the outer ones last."""
    if not isinstance(value, dict) or depth == 0:
        return
    for inner in value.values():
        yield from _integers(inner, depth - 1)
    yield from ((name, number) for name, number in value.items() if type(number) is int)
