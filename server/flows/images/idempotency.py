"""Which call a request is about: one that runs and is joined, one that has ended and is replayed, or a new one."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from server.accounts.calls import CallId, CallRecord, CallTaken, Failure, choose_retried
from server.accounts.keys import Key
from server.errors import Conflict, KeptError, KeyReused, Overloaded, RateLimited
from server.flows.images.create import Also, create_images
from server.flows.images.request import ImageCall
from server.flows.rate_limits import check_limit
from server.services import Services
from server.state.active_calls import RETRY_WINDOW_S, RunningCall, Ticket, failure_of
from server.state.background_tasks import finish_even_if_cancelled
from server.state.detached_task import FOREVER
from server.state.expected_retries import Same
from server.state.image_result import ImageResult

IN_USE = "idempotency_key_in_use"
PASSING_CODES = frozenset({"invalid_image_url"})  # a picture elsewhere may be reachable next time


@dataclass(frozen=True, slots=True)
class Visit:
    """What a request says about itself, beyond its parameters.

    `retry_count` is what OpenAI's SDKs send with every request: 0 with the first; None is another client.
    """

    fingerprint: str
    idempotency_key: str | None
    retry_count: int | None


async def open_call(services: Services, key: Key, call: ImageCall, visit: Visit) -> RunningCall:
    """The call to listen to. Raises KeyReused, Conflict, RateLimited and Overloaded; whatever else goes wrong, the
    call tells."""
    same = (key.id, call.endpoint, visit.fingerprint)
    if running := _running(services, same, visit):
        return running
    another_expected = services.calls.told.expects(same)
    record = await asyncio.to_thread(_recorded, services, same, visit, another_expected)
    if running := _running(services, same, visit):  # it may have begun while we looked
        return running
    if record is not None:
        return await _replay(services, record)
    return _start(services, key, call, visit)


def _running(services: Services, same: Same, visit: Visit) -> RunningCall | None:
    """A running call to join."""
    key_id, endpoint, _ = same
    if visit.idempotency_key is not None:
        found = services.calls.find_keyed(key_id, endpoint, visit.idempotency_key)
        if found is not None:
            check_fingerprint(found.ticket.call.fingerprint, visit)
        return found
    if visit.retry_count:
        found = services.calls.find_alike(same)
        return None if found is not None and found.heard and services.calls.told.expects(same) else found
    return None


def _recorded(services: Services, same: Same, visit: Visit, another_expected: bool) -> CallRecord | None:
    """A call of the past to replay."""
    key_id, endpoint, _ = same
    if visit.idempotency_key is not None:
        record = services.book.find_keyed(key_id, endpoint, visit.idempotency_key)
        if record is not None:
            check_fingerprint(record.call.fingerprint, visit)
        return record
    if visit.retry_count:
        return choose_retried(services.book.find_alike(*same, RETRY_WINDOW_S), another_expected=another_expected)
    return None


def check_fingerprint(known: str | None, visit: Visit) -> None:
    """Raises KeyReused for an Idempotency-Key that is known for a request with another fingerprint."""
    if known != visit.fingerprint:
        raise KeyReused(
            "This Idempotency-Key was used with other parameters before. Send a new key with a new request, and the "
            "same body with a retry."
        )


async def _replay(services: Services, record: CallRecord) -> RunningCall:
    """The stored answer, as a call that has ended."""
    if record.state == "running":  # and not here: servers share this database
        raise Conflict(
            "A call with this Idempotency-Key runs on another server. Try again in a moment.", 2, code=IN_USE
        )
    replayed = RunningCall(Ticket(record.call, FOREVER), replayed=True)
    answer, status = record.answer or {}, record.status or 500
    if record.state == "succeeded":
        replayed.end(ImageResult.from_record(record.call.id, answer))
    else:
        replayed.end(KeptError(status, answer))
    lasting = record.state == "succeeded" or _is_lasting(status, answer.get("code"))
    if not lasting or not record.heard:
        await asyncio.to_thread(services.book.told, record.call.id, keep=lasting)
    return replayed


def start_part(services: Services, key: Key, call: ImageCall, also: Also) -> RunningCall:
    """A call that is part of something larger, which was let in before: nobody can ask for it again, and it ends when
    nobody listens. What it is part of is recorded with its charge."""
    call_id = CallId(f"img_{uuid.uuid4().hex}", key.id, call.endpoint, uuid.uuid4().hex, None)
    return services.calls.start(Ticket(call_id, 0.0, is_part=True), _work(services, key, call, also))


def _work(
    services: Services, key: Key, call: ImageCall, also: Also | None = None
) -> Callable[[RunningCall], Coroutine[Any, Any, ImageResult]]:
    return lambda running: _record_failures(services, running, create_images(services, key, call, running, also))


def _start(services: Services, key: Key, call: ImageCall, visit: Visit) -> RunningCall:
    patience_s = 0.0 if visit.retry_count is None else services.settings.retry_grace_s
    call_id = CallId(f"img_{uuid.uuid4().hex}", key.id, call.endpoint, visit.fingerprint, visit.idempotency_key)
    ticket = Ticket(call_id, FOREVER if visit.idempotency_key is not None else patience_s)
    if visit.retry_count:
        services.calls.told.settle(call_id.same)
    try:
        services.calls.check_open()
        check_limit(services, key)
        return services.calls.start(ticket, _work(services, key, call))
    except (RateLimited, Overloaded):
        if visit.idempotency_key is None:
            services.calls.told.note(call_id.same)
        raise


async def _record_failures(
    services: Services, running: RunningCall, work: Coroutine[Any, Any, ImageResult]
) -> ImageResult:
    """Success is recorded together with its charge; everything else is recorded here."""
    try:
        return await work
    except CallTaken as error:
        raise Conflict(
            "A call with this Idempotency-Key has just begun. Try again in a moment.", 2, code=IN_USE
        ) from error
    except BaseException as error:
        await finish_even_if_cancelled(_record(services, running, error))
        raise


async def _record(services: Services, running: RunningCall, error: BaseException) -> None:
    """A refusal that depends on nothing but the request is kept. Anything else is kept only for a client that could not
    be told, because its answer had begun, and only until it has been."""
    call, told = running.ticket.call, failure_of(error, running.ticket)
    kept = running.answer_begun or _is_lasting(told.status, told.code)
    if not kept and running.heard and told.asks_for_retry and call.idempotency_key is None:
        services.calls.told.note(call.same)
    state: Literal["cancelled", "failed"] = "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
    failure = Failure(state, told.status, told.body()["error"], kept)
    await asyncio.to_thread(services.book.fail, call, failure, heard=running.heard)


def _is_lasting(status: int, code: str | None) -> bool:
    return status in {400, 404, 413, 422} and code not in PASSING_CODES
