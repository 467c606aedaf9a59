"""One chat completion that another server answers: passed on as it is, its tokens counted."""

from collections.abc import AsyncGenerator
from typing import Any

from pipelines.catalog.chat import Upstream
from server.backends.upstream import Answer, Json
from server.errors import EngineFailure
from server.flows.chat.run import Tally, count_chat
from server.services import Services


async def ask_upstream(services: Services, upstream: Upstream, values: Json, tally: Tally) -> Answer:
    """The upstream's answer, whatever its status. Raises ApiError if it has none."""
    outcome = "cut"
    try:
        answer = await services.upstreams.ask(upstream, {**values, "model": upstream.model})
        outcome = "finished" if answer.status == 200 else str(answer.status)
    finally:
        services.metrics.chats.labels(tally.model, outcome).inc()
    if answer.status == 200:
        await _count(services, tally, answer.body.get("usage"))
    return answer


async def stream_upstream(
    services: Services, upstream: Upstream, values: Json, tally: Tally
) -> AsyncGenerator[Answer | Json, None]:
    """The chunks; or, first and alone, the answer that came instead of a stream. Raises ApiError, also on the way.

    The upstream is always asked for the usage, so that it can be counted; a caller who did not ask is not shown it.
    """
    asked = values.get("stream_options")
    options = {**asked, "include_usage": True} if isinstance(asked, dict) else {"include_usage": True}
    wanted = isinstance(asked, dict) and bool(asked.get("include_usage"))
    body = {**values, "model": upstream.model, "stream_options": options}
    outcome, usage = "cut", None
    try:
        async with services.upstreams.stream(upstream, body) as answer:
            if isinstance(answer, Answer):
                outcome = str(answer.status)
                yield answer
                return
            async for chunk in answer:
                if error := chunk.get("error"):
                    raise EngineFailure(_message(error), code="upstream_failed")
                usage = chunk.get("usage") or usage
                if wanted or chunk.get("choices"):
                    yield chunk if wanted else {name: value for name, value in chunk.items() if name != "usage"}
            outcome = "finished"
    finally:
        await _count(services, tally, usage)
        services.metrics.chats.labels(tally.model, outcome).inc()


async def _count(services: Services, tally: Tally, usage: Any) -> None:
    if isinstance(usage, dict):
        counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        await count_chat(services, tally, *(count if isinstance(count, int) else 0 for count in counts))


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
