"""Chat completions that another server answers: the body is forwarded unchanged, the tokens are counted."""

from collections.abc import AsyncGenerator
from typing import Any

from pipelines.protocol.upstream import Upstream
from server.backends.upstream import Json, UpstreamClient, UpstreamResponse
from server.errors import EngineFailure
from server.flows.chat.run import ChatRunner, UsageContext
from server.telemetry.call_trace import current_trace
from server.telemetry.metrics import Metrics


class UpstreamChat:
    """Forwards chats to upstreams."""

    def __init__(self, upstreams: UpstreamClient, runner: ChatRunner, metrics: Metrics) -> None:
        self._upstreams = upstreams
        self._runner = runner
        self._metrics = metrics

    async def ask(self, upstream: Upstream, values: Json, usage: UsageContext) -> UpstreamResponse:
        """The upstream's answer, whatever its status. Raises ApiError if it has none."""
        outcome = "cut"
        current_trace().model = usage.model
        try:
            answer = await self._upstreams.complete(upstream, {**values, "model": upstream.model})
            outcome = "finished" if answer.status == 200 else str(answer.status)
        finally:
            self._metrics.chats.labels(usage.model, outcome).inc()
        if answer.status == 200:
            await self._record_usage(usage, answer.body.get("usage"))
        return answer

    async def answer(
        self, upstream: Upstream, values: Json, usage: UsageContext
    ) -> AsyncGenerator[UpstreamResponse, None]:
        """The same as the only item of a chat."""
        yield await self.ask(upstream, values, usage)

    async def stream(
        self, upstream: Upstream, values: Json, usage: UsageContext
    ) -> AsyncGenerator[UpstreamResponse | Json, None]:
        """The chunks; or, as the only item, the answer that came instead of a stream. Raises ApiError, also later.

        The upstream is always asked for the usage, so that it can be counted. It is removed from the chunks of a caller
        who did not ask for it.
        """
        sent = values.get("stream_options")
        options = {**sent, "include_usage": True} if isinstance(sent, dict) else {"include_usage": True}
        include_usage = isinstance(sent, dict) and bool(sent.get("include_usage"))
        body = {**values, "model": upstream.model, "stream_options": options}
        outcome, tokens = "cut", None
        current_trace().model = usage.model
        try:
            async with self._upstreams.stream(upstream, body) as answer:
                if isinstance(answer, UpstreamResponse):
                    outcome = str(answer.status)
                    yield answer
                    return
                async for chunk in answer:
                    if error := chunk.get("error"):
                        raise EngineFailure(_message(error), code="upstream_failed")
                    tokens = chunk.get("usage") or tokens
                    if include_usage:
                        yield chunk
                    elif chunk.get("choices"):
                        yield {name: value for name, value in chunk.items() if name != "usage"}
                outcome = "finished"
        finally:
            await self._record_usage(usage, tokens)
            self._metrics.chats.labels(usage.model, outcome).inc()

    async def _record_usage(self, usage: UsageContext, tokens: Any) -> None:
        """`tokens` is the upstream's usage object, not validated."""
        if isinstance(tokens, dict):
            counts = (tokens.get("prompt_tokens"), tokens.get("completion_tokens"))
            await self._runner.record_usage(usage, *(count if isinstance(count, int) else 0 for count in counts))


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
