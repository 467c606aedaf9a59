"""Which chat a request with an Idempotency-Key is for: a running one that it joins, an ended one, or a new one.

A chat is recorded when it has ended: it costs nothing, so one that died with its server may simply run again.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import structlog

from server.accounts.calls import CallId, CallRecord, CallStore, IdempotencyKeyInUse
from server.accounts.keys import Key
from server.errors import ReplayedError
from server.flows.chat.events import AnswerEvent, CallAdmitted, RawItem
from server.flows.rate_limits import RateLimiter
from server.flows.retries import RetryInfo, check_fingerprint, is_replayable
from server.state.active_chats import ENDPOINT, ActiveChat, ActiveChats, Sent
from server.state.active_job import ActiveJob
from server.state.tasks import BackgroundTasks, run_to_completion

log = structlog.stdlib.get_logger("darkroom.chat")

Items = Callable[[], AsyncGenerator[Sent, None]]  # what is sent of a chat: chunks, or a completion


class KeyedChats:
    """Starts chats that have an Idempotency-Key, and finds the earlier one of a retry."""

    def __init__(
        self, active: ActiveChats, store: CallStore, limiter: RateLimiter, background: BackgroundTasks
    ) -> None:
        self._active = active
        self._limiter = limiter
        self._store = store
        self._background = background

    async def events(
        self, key: Key, retry: RetryInfo, items: Items, on_start: Callable[[ActiveJob[Any]], None]
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield `CallAdmitted`, then the events so far and those to come. `on_start` gets the chat, once it is found or
        begun. Raises KeyReused, and the error that ends the chat, also later."""
        chat = await self._find_or_start(key, retry, items)
        on_start(chat)
        replayed = chat.replayed or chat.done
        with chat.listening():
            await chat.wait_admitted()
            yield CallAdmitted(0, replayed=replayed)
            async for item in chat.items():
                yield RawItem(item)

    async def _find_or_start(self, key: Key, retry: RetryInfo, items: Items) -> ActiveChat:
        idempotency_key = retry.idempotency_key or ""
        if running := self._find_running(key, retry, idempotency_key):
            return running
        record = await self._store.in_reader(self._store.find_keyed, key.id, ENDPOINT, idempotency_key)
        if running := self._find_running(key, retry, idempotency_key):  # it may have started during the look-up
            return running
        if record is not None:
            check_fingerprint(record.call.fingerprint, retry)
            return _replay(record)
        chat = ActiveChat(CallId(f"chat_{uuid.uuid4().hex}", key.id, ENDPOINT, retry.fingerprint, idempotency_key))
        return self._active.start(chat, self._run(key, chat, items))

    def _find_running(self, key: Key, retry: RetryInfo, idempotency_key: str) -> ActiveChat | None:
        running = self._active.find_keyed(key.id, ENDPOINT, idempotency_key)
        if running is not None:
            check_fingerprint(running.call.fingerprint, retry)
        return running

    async def _run(self, key: Key, chat: ActiveChat, items: Items) -> None:
        """Run the chat. Its end is recorded before it is told, so that a retry finds it."""
        failure = None
        try:
            async with self._limiter.claimed(key, chat.call, counted=False):
                await self._collect(chat, items)
        except (Exception, asyncio.CancelledError) as error:
            failure = chat.to_api_error(error)
        chat.end(failure)

    async def _collect(self, chat: ActiveChat, items: Items) -> None:
        failure = None
        try:
            async with aclosing(items()) as produced:
                async for item in produced:
                    chat.send(item)
        except (Exception, asyncio.CancelledError) as error:
            failure = chat.to_api_error(error)
        answer: Sent = {"items": chat.events} if failure is None else failure.body()["error"]
        status = 200 if failure is None else failure.status
        if failure is None or is_replayable(failure.status, failure.code):
            await run_to_completion(self._background.settle(self._record(chat, status, answer)))
        if failure is not None:
            raise failure

    async def _record(self, chat: ActiveChat, status: int, answer: Sent) -> None:
        try:
            await self._store.retry_in_writer(self._store.record_ended, chat.call, status, answer)
        except IdempotencyKeyInUse:  # on a server that shares the database; both clients have their answers
            log.warning("two servers had a chat with one Idempotency-Key", chat=chat.call.id)


def _replay(record: CallRecord) -> ActiveChat:
    answer, status = record.answer or {}, record.status or 500
    return ActiveChat.replay(record.call, answer["items"] if status == 200 else ReplayedError(status, answer))
