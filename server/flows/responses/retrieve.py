"""Responses that are asked for by their id: as they are, their inputs, their stream once more, their end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Literal

from server.accounts.calls import choose_retried
from server.accounts.keys import Key
from server.accounts.responses import StoredItem, StoredResponse
from server.errors import BadRequest, Conflict, NotFound
from server.flows.images.idempotency import Visit, check_fingerprint
from server.flows.responses.items import render, with_pictures
from server.schemas.response_object import Json, item_list, response_object
from server.services import Services
from server.state.active_calls import RETRY_WINDOW_S
from server.state.active_responses import TERMINAL, LiveResponse, same_response
from server.state.expected_retries import Same

Order = Literal["asc", "desc"]
AFTER_ALL = 10**6  # the number of an event that stands for a stream that was lost with its server


async def show_response(services: Services, key: Key, response_id: str) -> Json:
    """The object. Raises NotFound, for other keys' responses too."""
    live = services.live.find(response_id, key.id)
    if live is not None:
        return live.object()
    record, items = await _find(services, key, response_id)
    return await asyncio.to_thread(_object, services, record, items)


async def find_again(services: Services, key: Key, visit: Visit) -> LiveResponse | None:
    """The response that this request asks for once more, running or ended. Raises KeyReused or Conflict."""
    if visit.idempotency_key is None:
        return await _find_retried(services, same_response(key.id, visit.fingerprint))
    live = services.live.find_keyed(visit.idempotency_key, key.id)
    if live is not None:
        check_fingerprint(live.record.fingerprint, visit)
        return live
    found = await asyncio.to_thread(services.responses.find_keyed, visit.idempotency_key, key.id)
    if found is None:
        return None
    record, items = found
    check_fingerprint(record.fingerprint, visit)
    if record.running:
        raise Conflict("A response with this Idempotency-Key runs on another server. Try again in a moment.", 2)
    return await _again(services, record, items)


async def _find_retried(services: Services, same: Same) -> LiveResponse | None:
    """The same for an SDK that retries by itself, as the image routes do it."""
    another_expected = services.calls.told.expects(same)
    live = services.live.find_alike(same)
    if live is not None and not (live.heard and another_expected):
        return live
    key_id, _, fingerprint = same
    alike = await asyncio.to_thread(services.responses.find_alike, key_id, fingerprint, RETRY_WINDOW_S)
    chosen = choose_retried(alike, another_expected=another_expected)
    found = await asyncio.to_thread(services.responses.tell_again, chosen.id) if chosen else None
    return await _again(services, *found) if found else None


async def _again(services: Services, record: StoredResponse, items: Sequence[StoredItem]) -> LiveResponse:
    """A response that has ended, as one that is listened to."""
    again = LiveResponse(record, recorded=True, replayed=True)
    again.output = (await asyncio.to_thread(_object, services, record, items))["output"]
    again.events = await asyncio.to_thread(_past_events, services, record, items)
    state: Any = record.state
    again.status, again.ended = state, record.ended
    return again


async def stream_response(services: Services, key: Key, response_id: str, after: int) -> AsyncIterator[Json]:
    """The events of a background response after the one of that number: those of the past, then those to come.

    Raises NotFound or BadRequest before the first.
    """
    live = services.live.find(response_id, key.id)
    if live is not None:
        _need_background(live.record, "read the stream of")
        return live.follow(after)
    record, items = await _find(services, key, response_id)
    _need_background(record, "read the stream of")
    return _told(await asyncio.to_thread(_past_events, services, record, items), after)


async def cancel_response(services: Services, key: Key, response_id: str) -> Json:
    """End a background response; one that has ended stays as it is. Raises NotFound or BadRequest."""
    live = services.live.find(response_id, key.id)
    if live is not None:
        _need_background(live.record, "cancel")
        await _stop(live)
        return live.object()
    record, _ = await _find(services, key, response_id)
    _need_background(record, "cancel")
    if record.running:  # on another server, whose results will not be recorded any more
        await asyncio.to_thread(partial(services.responses.finish, heard=True), response_id, "cancelled", {})
    return await show_response(services, key, response_id)


async def delete_response(services: Services, key: Key, response_id: str) -> Json:
    """Forget a response; if it runs, it ends. Raises NotFound."""
    live = services.live.find(response_id, key.id)
    if live is not None:
        await _stop(live)
    if not await asyncio.to_thread(services.responses.delete, response_id, key.id):
        raise _not_found(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


async def list_inputs(
    services: Services, key: Key, response_id: str, limit: int, order: Order, after: str | None
) -> Json:
    """A page of what went in. Raises NotFound or BadRequest."""
    _, items = await _find(services, key, response_id)
    inputs = [item for item in items if item.side == "input"]
    if order == "desc":
        inputs.reverse()
    if after is not None:
        ids = [item.id for item in inputs]
        if after not in ids:
            raise BadRequest(f"There is no input item '{after}' in this response.", param="after")
        inputs = inputs[ids.index(after) + 1 :]
    page = [await asyncio.to_thread(render, item, services.storage) for item in inputs[:limit]]
    return item_list(page, has_more=len(inputs) > limit)


async def _find(services: Services, key: Key, response_id: str) -> tuple[StoredResponse, list[StoredItem]]:
    found = await asyncio.to_thread(services.responses.find, response_id, key.id)
    if found is None:
        raise _not_found(response_id)
    return found


async def _stop(live: LiveResponse) -> None:
    live.cancel()
    await live.end_of_it()


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="id")


def _need_background(record: StoredResponse, what: str) -> None:
    if not record.background:
        message = f"Cannot {what} a synchronous response. Only those that were created with 'background': true can be."
        raise BadRequest(message, param="id")


def _object(services: Services, record: StoredResponse, items: Sequence[StoredItem]) -> Json:
    output = [render(item, services.storage) for item in items if item.side == "output"]
    state: Any = record.state
    return response_object(record.id, record.created_at, record.echo, state, output, record.ended)


def _past_events(services: Services, record: StoredResponse, items: Sequence[StoredItem]) -> list[Json]:
    """What was told, with the pictures' bytes again. A response whose server died tells its end alone."""
    pictures = {item.id: render(item, services.storage)["result"] for item in items if item.picture is not None}
    if record.events or record.running:
        return [with_pictures(event, pictures) for event in record.events or ()]
    whole = _object(services, record, items)
    state: Any = record.state
    return [{"type": TERMINAL[state], "sequence_number": AFTER_ALL, "response": whole}]


async def _told(events: Sequence[Json], after: int) -> AsyncIterator[Json]:
    for event in events:
        if event["sequence_number"] > after:
            yield event
