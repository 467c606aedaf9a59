"""How many calls a key may have at once, and how many it may start in a minute, so that no key fills the queues alone.

Image calls, chats and responses count alike. A response counts once, whatever it chats and draws. A retry that gets an
earlier call's answer does not count. Each API process counts for itself.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from server.accounts.keys import Key
from server.backends.engine_host import EngineHost
from server.errors import RateLimited
from server.state.active_calls import ActiveCalls
from server.state.active_responses import ActiveResponses
from server.state.call_rate import CallRate
from server.state.concurrency import KeyConcurrency
from server.state.image_backlog import Backlog

Item = TypeVar("Item")


class RateLimiter:
    """The limits of every key, as one API process sees them."""

    def __init__(
        self,
        calls: ActiveCalls,
        responses: ActiveResponses,
        backlog: Backlog,
        chat_engine: EngineHost[ChatJob | CountJob, ChatEvent],
        max_running_per_key: int,
    ) -> None:
        self._calls = calls
        self._responses = responses
        self._backlog = backlog
        self._chat_engine = chat_engine
        self._max_running_per_key = max_running_per_key
        self._slots = KeyConcurrency()
        self._rate = CallRate()

    def check(self, key: Key) -> None:
        """Count one more call of the key. Raises RateLimited."""
        limit = self.max_running(key)
        if self.running(key) >= limit:
            raise RateLimited(
                f"This key has {limit} calls running, which is its limit. Wait for one of them to end, or ask the "
                "operator for a higher limit (darkroom keys set --max-running).",
                self._next_end_s(key),
                self.headers(key),
            )
        if key.per_minute is not None and not self._rate.begin(key.id, key.per_minute):
            raise RateLimited(
                f"This key may begin {key.per_minute} calls a minute. Wait a moment, or ask the operator for a higher "
                "limit (darkroom keys set --per-minute).",
                self._rate.reset_s(key.id),
                self.headers(key),
            )

    @contextmanager
    def slot(self, key: Key) -> Iterator[None]:
        """One of the key's concurrent calls while this is entered. Raises RateLimited."""
        self.check(key)
        with self._slots.acquire(key.id):
            yield

    async def with_slot(self, key: Key, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
        """The items, while a slot is held until the last of them. Raises RateLimited before the first."""
        async with aclosing(items):
            with self.slot(key):
                async for item in items:
                    yield item

    def max_running(self, key: Key) -> int:
        """How many calls this key may have at once."""
        return self._max_running_per_key if key.max_running is None else key.max_running

    def headers(self, key: Key) -> dict[str, str]:
        """OpenAI's x-ratelimit headers: of the calls a minute if those are limited, else of the concurrent calls, which
        reset when the running ones have ended."""
        if key.per_minute is not None:
            return _headers(key.per_minute, self._rate.remaining(key.id, key.per_minute), self._rate.reset_s(key.id))
        limit = self.max_running(key)
        chat_s = self._chat_engine.job_s if self._chats(key) else 0.0
        return _headers(limit, max(0, limit - self.running(key)), max(self._backlog.remaining_s(key.id), chat_s))

    def running(self, key: Key) -> int:
        """How many calls this key has now."""
        return self._calls.count(key.id) + self._chats(key)

    def _chats(self, key: Key) -> int:
        return self._responses.count(key.id) + self._slots.count(key.id)

    def _next_end_s(self, key: Key) -> float:
        """When the first of the key's calls may end: by a picture's work left, by the average of recent chats."""
        chats = self._chats(key)
        pictures_s = [self._backlog.next_end_s(key.id)] if self._calls.count(key.id) else []
        return min([*pictures_s, *([self._chat_engine.job_s / chats] if chats else [])], default=0.0)


def go_duration(seconds: float) -> str:
    """As Go writes durations: 120ms, 1s, 6m0s, 1h0m0s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest_s}s" if hours else f"{minutes}m{rest_s}s" if minutes else f"{rest_s}s"


def _headers(limit: int, remaining: int, reset_s: float) -> dict[str, str]:
    return {
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": str(remaining),
        "x-ratelimit-reset-requests": go_duration(reset_s),
    }
