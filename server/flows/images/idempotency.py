"""Which call a request is for: a running one that it joins, an ended one that is replayed, or a new one."""

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any, Literal

from server.accounts.calls import CallId, CallRecord, CallStore, Failure, IdempotencyKeyInUse, match_retry
from server.accounts.keys import Key
from server.accounts.results import CALL_PREFIX
from server.errors import Conflict, Overloaded, RateLimited, ReplayedError, RunsElsewhere
from server.flows.images.create import ExtraWrites, ImageCreator
from server.flows.images.request import ImageRequest
from server.flows.rate_limits import RateLimiter
from server.flows.retries import RetryInfo, check_fingerprint, is_replayable
from server.parts import Running
from server.state.active_calls import RETRY_WINDOW_S, ActiveCall
from server.state.background_tasks import run_to_completion
from server.state.detached_task import FOREVER, CancelReason
from server.state.expected_retries import CallIdentity
from server.state.image_result import ImageResult

IN_USE = "idempotency_key_in_use"


class ImageCalls:
    """Starts image calls, and finds the earlier call of a retry."""

    def __init__(
        self, creator: ImageCreator, running: Running, store: CallStore, limiter: RateLimiter, *, retry_grace_s: float
    ) -> None:
        self._creator = creator
        self._running = running
        self._store = store
        self._limiter = limiter
        self._retry_grace_s = retry_grace_s

    async def find_or_start(self, key: Key, request: ImageRequest, retry: RetryInfo) -> ActiveCall:
        """Return the call to follow. Raises KeyReused, Conflict, RateLimited and Overloaded; other failures are the
        call's."""
        identity = (key.id, request.endpoint, retry.fingerprint)
        if running := self._find_running(identity, retry):
            return running
        another_expected = self._running.expected_retries.contains(identity)
        record = await self._store.in_reader(self._find_recorded, identity, retry, another_expected)
        if running := self._find_running(identity, retry):  # it may have started during the look-up
            return running
        if record is not None:
            return await self._replay(record)
        return self._start(key, request, retry)

    def start_nested(self, key: Key, request: ImageRequest, extra_writes: ExtraWrites) -> ActiveCall:
        """Start a call that is part of a response. Its own client can't ask for it again, and it ends with its
        listener. `extra_writes` records the response's item with the charge."""
        call_id = CallId(f"{CALL_PREFIX}{uuid.uuid4().hex}", key.id, request.endpoint, uuid.uuid4().hex, None)
        call = ActiveCall(call_id, 0.0, is_nested=True)
        work = self._creator.create(key, request, call, extra_writes)
        return self._running.calls.start(call, self._record_failures(call, work))

    def _find_running(self, identity: CallIdentity, retry: RetryInfo) -> ActiveCall | None:
        key_id, endpoint, _ = identity
        if retry.idempotency_key is not None:
            keyed = self._running.calls.find_keyed(key_id, endpoint, retry.idempotency_key)
            if keyed is not None:
                check_fingerprint(keyed.call.fingerprint, retry)
            return keyed
        if not retry.retry_count:
            return None
        equal = self._running.calls.find_by_fingerprint(identity)
        followed = equal is not None and equal.has_listeners
        return None if followed and self._running.expected_retries.contains(identity) else equal

    def _find_recorded(self, identity: CallIdentity, retry: RetryInfo, another_expected: bool) -> CallRecord | None:
        key_id, endpoint, _ = identity
        if retry.idempotency_key is not None:
            record = self._store.find_keyed(key_id, endpoint, retry.idempotency_key)
            if record is not None:
                check_fingerprint(record.call.fingerprint, retry)
            return record
        if not retry.retry_count:
            return None
        records = self._store.find_by_fingerprint(*identity, RETRY_WINDOW_S)
        return match_retry(records, another_expected=another_expected)

    async def _replay(self, record: CallRecord) -> ActiveCall:
        """Return the stored answer as a call that has ended. Raises RunsElsewhere if another server still runs it."""
        if record.state == "running":  # not in this process: servers share the database
            message = "A call with this Idempotency-Key runs on another server. Try again in a moment."
            raise RunsElsewhere(message, owner=record.owner, key_id=record.call.key_id, code=IN_USE)
        replayed = ActiveCall(record.call, FOREVER, replayed=True)
        answer, status = record.answer or {}, record.status or 500
        if record.state == "succeeded":
            replayed.end(ImageResult.from_record(record.call.id, answer))
        else:
            replayed.end(ReplayedError(status, answer))
        replayable = record.state == "succeeded" or is_replayable(status, answer.get("code"))
        if not replayable or not record.delivered:
            await self._store.in_writer(self._store.mark_delivered, record.call.id, still_replayable=replayable)
        return replayed

    def _start(self, key: Key, request: ImageRequest, retry: RetryInfo) -> ActiveCall:
        call_id = CallId(
            f"{CALL_PREFIX}{uuid.uuid4().hex}", key.id, request.endpoint, retry.fingerprint, retry.idempotency_key
        )
        grace_s = 0.0 if retry.retry_count is None else self._retry_grace_s
        if retry.retry_count:
            self._running.expected_retries.consume(call_id.identity)
        try:
            self._running.drain.check_open()
            self._limiter.check(key)
        except (RateLimited, Overloaded):
            if retry.idempotency_key is None:
                self._running.expected_retries.add(call_id.identity)
            raise
        call = ActiveCall(call_id, FOREVER if retry.idempotency_key is not None else grace_s)
        return self._running.calls.start(
            call, self._record_failures(call, self._claim_and_create(key, request, call, retry))
        )

    async def _claim_and_create(
        self, key: Key, request: ImageRequest, call: ActiveCall, retry: RetryInfo
    ) -> ImageResult:
        async with self._limiter.claimed(key, call.call, find_equal=retry.finds_equal):
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
            record = self._store.retry_in_writer(self._store.fail, call.call, failure, delivered=call.is_delivered)
            await self._running.background.settle(record)
