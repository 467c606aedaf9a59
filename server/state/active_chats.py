"""Chats with an Idempotency-Key that run. They belong to the server: a retry joins them or gets their answer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import structlog

from server.accounts.calls import CallId
from server.errors import ApiError, EngineFailure, Overloaded
from server.state.active_job import ActiveJob, ActiveJobs
from server.state.detached_task import FOREVER

log = structlog.stdlib.get_logger("darkroom.chat")

ENDPOINT = "chat.completions"
Json = dict[str, Any]


class ActiveChat(ActiveJob[Json]):
    """One chat. Its events are what is sent: the chunks of a stream, or one completion.

    It holds a slot of its key's while it runs, so it does not count a second time.
    """

    counts_towards_limit = False

    def __init__(self, call: CallId, *, replayed: bool = False) -> None:
        super().__init__(call, FOREVER, replayed=replayed)
        self._admitted = self._ended = False

    @classmethod
    def replay(cls, call: CallId, outcome: Sequence[Json] | ApiError) -> "ActiveChat":
        """A chat that ended before, to be followed like one that runs."""
        chat = cls(call, replayed=True)
        if not isinstance(outcome, ApiError):
            chat.events.extend(outcome)
        chat.end(outcome if isinstance(outcome, ApiError) else None)
        return chat

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self._ended

    @property
    def admitted(self) -> bool:
        """Whether the engine has taken it."""
        return self._admitted

    def admit(self) -> None:
        """The engine has taken it: its answer begins with status 200."""
        self._admitted = True
        self._notify()

    def send(self, item: Json) -> None:
        """Append a chunk, or the completion."""
        self.events.append(item)
        self._notify()

    def end(self, failure: ApiError | None) -> None:
        """Nothing more comes. A failure is raised to all who follow."""
        self.failure, self._ended = failure, True
        self._notify()

    async def items(self) -> AsyncIterator[Json]:
        """Everything that is sent, from the first item on. Raises ApiError, also between them."""
        async for item in self.follow():
            yield item
        if self.failure is not None:
            raise self.failure

    def to_api_error(self, error: BaseException) -> ApiError:
        """What the client gets for any exception that ended the chat."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, asyncio.CancelledError):
            return Overloaded("The chat was stopped before its end. Please send it again.", 2)
        log.error("chat failed", chat=self.call.id, exc_info=error)
        return EngineFailure(f"Something went wrong on the server (chat {self.call.id}).")

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        if not self.done:  # cancelled before its first step
            self.end(self.to_api_error(asyncio.CancelledError()))


class ActiveChats(ActiveJobs[ActiveChat]):
    """Registry of chats with an Idempotency-Key."""
