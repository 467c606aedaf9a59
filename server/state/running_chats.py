"""Chats that run, as operators and their keys see them, and how each is ended by its id.

A chat with an Idempotency-Key has the id of its job. Any other has its request's, which its answer has in the header
`x-request-id`: it ends with its connection.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from pipelines.protocol.chat import ReasoningDelta, TextDelta, ToolCallDelta
from server.errors import ApiError, Cancelled
from server.telemetry.call_trace import current_trace

Item = TypeVar("Item")


class RunningChat:
    """One chat, from its slot among the key's calls until its end."""

    def __init__(self, key_id: str, model: str, endpoint: str) -> None:
        self.trace = current_trace()
        self.id = self.trace.job or self.trace.request_id
        self.key_id = key_id
        self.model = model
        self.endpoint = endpoint
        self.created_at = time.time()
        self.admitted = False  # the model, or its server, has taken it
        self.tokens = 0  # the pieces that were sent, each of one token or more
        self.cancelled = False
        self._items: AsyncGenerator[object, None] | None = None
        self._waiting: asyncio.Timeout | None = None  # for the next item
        self._closed = asyncio.Event()

    async def follow(self, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
        """The items, until their end. Raises Cancelled after `cancel`."""
        self._items = items
        try:
            while not self.cancelled:
                async with asyncio.timeout(None) as self._waiting:
                    item = await anext(items, None)
                self._waiting = None
                if item is None:
                    break
                self._count(item)
                yield item
        except TimeoutError:
            if not self.cancelled:  # it is the chat's own
                raise
        finally:
            self._closed.set()
        if self.cancelled:
            raise Cancelled("The chat was cancelled.")

    @property
    def done(self) -> bool:
        """Whether it has ended, or is to end."""
        return self.cancelled or self._closed.is_set()

    async def cancel(self) -> None:
        """End it, and wait until it has ended. What it used is counted."""
        self.cancelled = True
        if self._waiting is not None:
            self._waiting.reschedule(0)
            await self._closed.wait()
        elif self._items is not None:  # its client reads slowly: the model stops at once
            await self._items.aclose()

    def _count(self, item: object) -> None:
        self.admitted = True
        text = isinstance(item, TextDelta | ReasoningDelta | ToolCallDelta)
        self.tokens += text or (isinstance(item, Mapping) and bool(item.get("choices")))


class RunningChats:
    """Registry of running chats, in the order in which they began."""

    def __init__(self) -> None:
        self._chats: dict[str, RunningChat] = {}

    def all(self) -> tuple[RunningChat, ...]:
        """Those of every key."""
        return tuple(self._chats.values())

    @contextmanager
    def listed(self, chat: RunningChat) -> Iterator[None]:
        """It runs while this is entered. Its trace has the failure, which an answer that has begun can't tell."""
        self._chats[chat.id] = chat
        try:
            yield
        except ApiError as error:
            chat.trace.status, chat.trace.code = error.status, error.label
            raise
        finally:
            del self._chats[chat.id]
