"""Which call a request is for: a running one that it joins, an ended one that is replayed, or a new one."""

import asyncio
import uuid
from collections.abc import Coroutine
from functools import partial
from typing import Any, Literal

from server.accounts.calls import CallId, CallRecord, CallStore, Failure, IdempotencyKeyInUse
from server.accounts.fingerprints import as_sent
from server.accounts.keys import Key
from server.accounts.results import CALL_PREFIX
from server.errors import Conflict, Overloaded, RateLimited, ReplayedError, RunsElsewhere
from server.flows.images.create import ExtraWrites, ImageCreator
from server.flows.images.request import ImageRequest
from server.flows.rate_limits import RateLimiter
from server.flows.retries import EqualCalls, RetryInfo, check_fingerprint, is_replayable
from server.parts import Running
from server.state.active_calls import RETRY_WINDOW_S, ActiveCall, ImageResult
from server.state.tasks import FOREVER, CancelReason, run_to_completion

IN_USE = "idempotency_key_in_use"


class ImageCalls:
    """Starts image calls, and finds the earlier call of a retry."""

    def __init__(
        self,
        creator: ImageCreator,
        running: Running,
        store: CallStore,
        limiter: RateLimiter,
        equal_calls: EqualCalls,
        *,
        retry_grace_s: float,
    ) -> None:
        self._creator = creator
        self._running = running
        self._store = store
        self._limiter = limiter
        self._equal_calls = equal_calls
        self._retry_grace_s = retry_grace_s

    async def find_or_start(self, key: Key, request: ImageRequest, retry: RetryInfo) -> ActiveCall:
        """Return the call to follow. Raises KeyReused, Conflict, RateLimited and Overloaded; other failures are the
        call's."""
        retry_key = retry.idempotency_key or as_sent(retry.fingerprint)
        async with self._running.calls.look_up_lock(key.id, retry_key):
            if retry.idempotency_key is not None:
                earlier = await self._find_keyed(key.id, request.endpoint, retry.idempotency_key, retry)
            else:
                earlier = await self._find_equal(key.id, request.endpoint, retry)
            return earlier or self._start(key, request, retry)

    def start_nested(self, key: Key, request: ImageRequest, extra_writes: ExtraWrites) -> ActiveCall:
        """Start a call that is part of a response. Its own client can't ask for it again, and it ends with its
        listener. `extra_writes` records the response's item with the charge."""
        call_id = CallId(f"{CALL_PREFIX}{uuid.uuid4().hex}", key.id, request.endpoint, uuid.uuid4().hex, None)
        call = ActiveCall(call_id, 0.0, is_nested=True)
        work = self._creator.create(key, request, call, extra_writes)
        return self._running.calls.start(call, self._record_failures(call, work))

    async def _find_keyed(
        self, key_id: str, endpoint: str, idempotency_key: str, retry: RetryInfo
    ) -> ActiveCall | None:
        running = self._running.calls.find_keyed(key_id, endpoint, idempotency_key)
        if running is not None:
            check_fingerprint(running.call.fingerprint, retry)
            return running
        record = await self._store.in_reader(self._store.find_keyed, key_id, endpoint, idempotency_key)
        if record is None:
            return None
        check_fingerprint(record.call.fingerprint, retry)
        return await self._replay(record)

    async def _find_equal(self, key_id: str, endpoint: str, retry: RetryInfo) -> ActiveCall | None:
        identity = retry.identity(key_id, endpoint)
        read = partial(self._store.find_by_fingerprint, *identity, RETRY_WINDOW_S)
        earlier = await self._equal_calls.find(self._running.calls, read, identity, retry)
        if earlier is None or isinstance(earlier, ActiveCall):
            return earlier
        if earlier.delivered:
            return await self._replay(earlier)
        mark = partial(self._store.retry_in_writer, self._store.mark_delivered, earlier.id)
        if not await mark():  # another gateway has just given it to another retry
            return None
        replayed = await self._replay(earlier)
        replayed.when_left(lambda: None if replayed.answered else self._spawn(mark(delivered=False)))
        return replayed

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self._running.background.spawn(work)

    async def _replay(self, record: CallRecord) -> ActiveCall:
        """Return the stored answer as a call that has ended. Raises RunsElsewhere if another server still runs it."""
        if record.state == "running":  # not in this process: servers share the database
            message = "A call with this Idempotency-Key runs on another server. Try again in a moment."
            raise RunsElsewhere(message, owner=record.owner, key_id=record.call.key_id, code=IN_USE)
        replayed = ActiveCall(record.call, FOREVER, replayed=True)
        answer, status = record.answer or {}, record.status or 500
        if record.state == "succeeded":
            replayed.end(ImageResult.from_record(record.call.id, answer))
            return replayed
        replayed.end(ReplayedError(status, answer))
        if not is_replayable(status, answer.get("code")):
            await self._store.in_writer(self._store.free, record.call.id)
        return replayed

    def _start(self, key: Key, request: ImageRequest, retry: RetryInfo) -> ActiveCall:
        call_id = CallId(
            f"{CALL_PREFIX}{uuid.uuid4().hex}", key.id, request.endpoint, retry.fingerprint, retry.idempotency_key
        )
        grace_s = 0.0 if retry.retry_count is None else self._retry_grace_s
        if retry.says_retry:
            self._running.expected_retries.consume(call_id.identity)
        try:
            self._running.drain.check_open()
            self._limiter.check(key)
        except (RateLimited, Overloaded):
            if retry.idempotency_key is None:
                self._running.expected_retries.add(call_id.identity)
            raise
        call = ActiveCall(call_id, FOREVER if retry.idempotency_key is not None else grace_s)
        if retry.idempotency_key is None:  # whoever has that gets the answer again in any case
            call.record_arrival = partial(self._store.retry_in_writer, self._store.mark_delivered, call_id.id)
            self._limiter.tell_when_left(call)
        return self._running.calls.start(
            call, self._record_failures(call, self._claim_and_create(key, request, call, retry))
        )

    async def _claim_and_create(
        self, key: Key, request: ImageRequest, call: ActiveCall, retry: RetryInfo
    ) -> ImageResult:
        async with self._limiter.claimed(key, call.call, find_equal=retry.equal_elsewhere):
            return await self._creator.create(key, request, call)

    async def _record_failures(self, call: ActiveCall, work: Coroutine[Any, Any, ImageResult]) -> ImageResult:
        """Await the work, and record a failure. A success is recorded together with its charge instead."""
        try:
            return await work
        except IdempotencyKeyInUse as error:
            raise Conflict(
                "A call with this Idempotency-Key has just begun. Try again in a moment.", 2, code=IN_USE
            ) from error
        except BaseException as error:
            await run_to_completion(self._record_failure(call, error))
            raise

    async def _record_failure(self, call: ActiveCall, error: BaseException) -> None:
        """Record how a call failed. A refusal that depends on the request alone is replayable. Any other failure is
        replayable once, for a client whose answer had begun and which therefore could not get the error."""
        failed = call.to_api_error(error)
        replayable = call.response_started or is_replayable(failed.status, failed.code)
        told_to_retry = failed.triggers_sdk_retry and not isinstance(failed, RunsElsewhere)
        if not replayable and call.has_listeners and told_to_retry and call.call.idempotency_key is None:
            self._running.expected_retries.add(call.call.identity)
        stopped = call.in_background and call.cancel_reason is CancelReason.SHUTDOWN  # its client did not want that
        was_cancelled = isinstance(error, asyncio.CancelledError) and not stopped
        state: Literal["cancelled", "failed"] = "cancelled" if was_cancelled else "failed"
        failure = Failure(state, failed.status, failed.body()["error"], replayable)
        if call.recorded or (replayable and call.call.idempotency_key is not None):
            told = call.has_listeners or call.in_background
            record = self._store.retry_in_writer(self._store.fail, call.call, failure, delivered=told)
            await self._running.background.settle(record)
