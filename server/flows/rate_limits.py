"""How many calls a key may have at once, and how many it may start in a minute, so that no key fills the queues alone.

Image calls, chats and responses count alike. A response counts once, with all its chats and images. A retry that gets
an earlier call's answer does not count.

A gateway counts its own calls in memory. If there are several, each call is also claimed in the database, where the
calls of all of them count.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from server.accounts.calls import CallId
from server.accounts.claims import ClaimedElsewhere, ClaimLimits, ClaimRefused, ClaimStore, Equal, KeyCounts
from server.accounts.keys import Key
from server.backends.engine_host import EngineHost
from server.errors import DatabaseBusy, RateLimited, RunsElsewhere
from server.parts import Running
from server.state.active_job import ActiveJob
from server.state.call_limits import CallRate, KeyConcurrency
from server.state.tasks import run_to_completion


class RateLimiter:
    """The limits of every key, as one API process sees them."""

    def __init__(
        self,
        running: Running,
        chat_engine: EngineHost[ChatJob | CountJob, ChatEvent],
        claims: ClaimStore | None,
        max_running_per_key: int,
    ) -> None:
        self._running = running
        self._chat_engine = chat_engine
        self._max_running_per_key = max_running_per_key
        self._slots = KeyConcurrency()
        self._rate = CallRate()
        self._claims = claims
        self._claimed: set[str] = set()
        self._counts: dict[str, tuple[float, KeyCounts]] = {}  # at the last claim of each key, and when that was

    def check(self, key: Key) -> None:
        """Count one more call of the key. Raises RateLimited."""
        if self.running(key) >= self.max_running(key):
            raise self._too_many(key)
        if self._claims is not None:  # the claim will count it: until then it is told to the client as counted
            before = self._counts.get(key.id, (0.0, KeyCounts(0, 0, 0.0)))[1]
            self._counts[key.id] = (time.monotonic(), replace(before, begun=before.begun + 1))
        elif key.per_minute is not None and not self._rate.begin(key.id, key.per_minute):
            raise self._too_often(key)

    @asynccontextmanager
    async def claimed(
        self, key: Key, call: CallId, *, find_equal: Equal | None = None, counted: bool = True
    ) -> AsyncIterator[None]:
        """Claim the call while this is entered: it is in `claimed_ids`, and the other gateways know that it runs here.
        Raises RateLimited, RunsElsewhere and DatabaseBusy."""
        self._claimed.add(call.id)
        try:
            async with self._claim(key, call, find_equal=find_equal, counted=counted):
                yield
        finally:
            self._claimed.discard(call.id)

    def tell_when_left(self, job: ActiveJob[Any]) -> None:
        """Tell the other gateways when the job's client has left: a retry may come to any of them."""
        if (claims := self._claims) is None:
            return

        def tell() -> None:
            if not job.done:
                self._running.background.spawn(claims.retry_in_writer(claims.mark_left, job.call.id))

        job.when_left(tell)

    @property
    def claimed_ids(self) -> frozenset[str]:
        """Return the ids of all calls, chats and responses that run here, from before anything of them is recorded
        until after their end."""
        return frozenset(self._claimed)

    @asynccontextmanager
    async def _claim(self, key: Key, call: CallId, *, find_equal: Equal | None, counted: bool) -> AsyncIterator[None]:
        if self._claims is None:
            yield
            return
        limits = ClaimLimits(self.max_running(key), key.per_minute) if counted else None
        try:
            begin = self._claims.in_writer(self._claims.begin, call, limits, find_equal=find_equal)
            counts = await run_to_completion(begin)
        except ClaimedElsewhere as error:
            message = "This call runs on another server already. Try again in a moment."
            raise RunsElsewhere(message, owner=error.owner, key_id=key.id) from error
        except ClaimRefused as error:
            self._counts[key.id] = (time.monotonic(), error.counts)
            raise self._too_often(key) if error.per_minute else self._too_many(key) from error
        except (DatabaseBusy, asyncio.CancelledError):  # it may be claimed
            self._running.background.spawn(self._claims.retry_in_writer(self._claims.end, call.id))
            raise
        try:
            self._counts[key.id] = (time.monotonic(), counts)
            yield
        finally:  # before the answer: the client's next call may come to another gateway
            await self._running.background.settle(self._claims.retry_in_writer(self._claims.end, call.id))

    def counted(self, key: Key) -> AbstractContextManager[None]:
        """Count one more of the key's concurrent calls while this is entered."""
        return self._slots.acquire(key.id)

    @asynccontextmanager
    async def slot(self, key: Key) -> AsyncIterator[None]:
        """Take one of the key's concurrent calls while this is entered. Raises RateLimited."""
        self.check(key)
        with self.counted(key):
            async with self.claimed(key, CallId(f"slot_{uuid.uuid4().hex}", key.id, "chat", "", None)):
                yield

    def max_running(self, key: Key) -> int:
        """Return how many calls this key may have at once."""
        return self._max_running_per_key if key.max_running is None else key.max_running

    def headers(self, key: Key) -> dict[str, str]:
        """Return OpenAI's x-ratelimit headers: of the calls a minute if those are limited, else of the concurrent
        calls, which reset when the running ones have ended."""
        if key.per_minute is not None:
            return _headers(key.per_minute, self._remaining(key, key.per_minute), self._reset_s(key))
        limit = self.max_running(key)
        chat_s = self._chat_engine.speeds.job_s if self._chats(key) else 0.0
        return _headers(
            limit, max(0, limit - self.running(key)), max(self._running.backlog.remaining_s(key.id), chat_s)
        )

    def _remaining(self, key: Key, per_minute: int) -> int:
        if self._claims is None:
            return self._rate.remaining(key.id, per_minute)
        return max(0, per_minute - self._counts[key.id][1].begun) if key.id in self._counts else per_minute

    def _reset_s(self, key: Key) -> float:
        if self._claims is None:
            return self._rate.reset_s(key.id)
        at, counts = self._counts.get(key.id, (0.0, KeyCounts(0, 0, 0.0)))
        return max(0.0, at + counts.reset_s - time.monotonic())

    def _too_many(self, key: Key) -> RateLimited:
        return RateLimited(
            f"This key has {self.max_running(key)} calls running, which is its limit. Wait for one of them to end, or "
            "ask the operator for a higher limit (darkroom keys set --max-running).",
            self._next_end_s(key),
            self.headers(key),
        )

    def _too_often(self, key: Key) -> RateLimited:
        return RateLimited(
            f"This key may begin {key.per_minute} calls a minute. Wait a moment, or ask the operator for a higher "
            "limit (darkroom keys set --per-minute).",
            self._reset_s(key),
            self.headers(key),
        )

    def running(self, key: Key) -> int:
        """Return how many calls this key has now."""
        return self._running.calls.count(key.id) + self._chats(key)

    def _chats(self, key: Key) -> int:
        return self._running.responses.count(key.id) + self._slots.count(key.id)

    def _next_end_s(self, key: Key) -> float:
        """Estimate when the first of the key's calls may end, in seconds from now: by an image's work left, by the
        average of recent chats."""
        chats = self._chats(key)
        images_s = [self._running.backlog.next_end_s(key.id)] if self._running.calls.count(key.id) else []
        return min([*images_s, *([self._chat_engine.speeds.job_s / chats] if chats else [])], default=0.0)


def go_duration(seconds: float) -> str:
    """Write a duration as Go does: 120ms, 1s, 6m0s, 1h0m0s."""
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
