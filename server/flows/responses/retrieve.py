"""Responses by id: the object, its inputs, its stream once more, cancel, delete; and the response of a retry."""

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Literal, cast

from server.accounts.keys import Key
from server.accounts.paging import Page
from server.accounts.response_items import StoredItem
from server.accounts.responses import StoredResponse
from server.errors import BadRequest, NotFound, RunsElsewhere
from server.flows.responses.items import render, render_page, with_images
from server.flows.retries import EqualCalls, RetryInfo, check_fingerprint
from server.parts import Running, Stores
from server.schemas.reports import ResponseSummary
from server.schemas.response_answers import ImageCall, InputItemList, OutputItem, item_list
from server.schemas.response_events import Event
from server.schemas.response_object import DeletedResponse, ResponseObject, ResponseStatus, response_object
from server.state.active_calls import RETRY_WINDOW_S
from server.state.active_responses import ENDPOINT, TERMINAL, ActiveResponse

Order = Literal["asc", "desc"]
TITLE_LENGTH = 120
LOST_STREAM = 10**6  # sequence number of the only event of a stream that was lost with its server


class Responses:
    """Reads running responses from memory, and ended ones from the database."""

    def __init__(self, running: Running, stores: Stores, equal_calls: EqualCalls) -> None:
        self._active = running.responses
        self._background = running.background
        self._equal_calls = equal_calls
        self._store = stores.responses
        self._storage = stores.files
        self._owner = stores.gateways.owner

    async def show(self, key: Key, response_id: str) -> ResponseObject:
        """Return the response object. Raises NotFound, for other keys' responses too."""
        running = self._active.find_stored(response_id, key.id)
        if running is not None:
            return running.object()
        record, items = await self._find_here(key, response_id)
        return await self._storage.in_thread(self._object, record, items)

    def summaries(self, key_id: str, page: Page, *, roots_only: bool, root: str | None) -> list[ResponseSummary]:
        """List this key's stored responses, and one more than the page has room for if there are more. Blocking. Raises
        UnknownEntry."""
        return [_summary(*found) for found in self._store.page(key_id, page, roots_only=roots_only, root=root)]

    async def stream(self, key: Key, response_id: str, after: int) -> AsyncIterator[Event]:
        """Return the events of a background response after the one with that number, also those to come.

        Raises NotFound or BadRequest before the first.
        """
        running = self._active.find_stored(response_id, key.id)
        if running is not None:
            _require_background(running.record, "read the stream of")
            return running.follow(after)
        record, items = await self._find_here(key, response_id)
        _require_background(record, "read the stream of")
        return _events_after(await self._storage.in_thread(self._recorded_events, record, items), after)

    async def cancel(self, key: Key, response_id: str) -> ResponseObject:
        """Cancel a background response, and return it; an ended one stays as it is. Raises NotFound or BadRequest."""
        running = self._active.find_stored(response_id, key.id)
        if running is not None:
            _require_background(running.record, "cancel")
            await running.cancel_and_wait()
            return running.object()
        record, _ = await self._find_here(key, response_id)
        _require_background(record, "cancel")
        if record.running:  # its end could not be recorded
            await self._store.in_writer(self._store.finish, response_id, "cancelled", {})
        return await self.show(key, response_id)

    async def delete(self, key: Key, response_id: str) -> DeletedResponse:
        """Delete a response, and return OpenAI's answer; one that runs is cancelled. Raises NotFound."""
        running = self._active.find_stored(response_id, key.id)
        if running is not None:
            await running.cancel_and_wait()
        else:
            await self._find_here(key, response_id)
        if not await self._store.in_writer(self._store.delete, response_id, key.id):
            raise _not_found(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    async def name(self, key: Key, response_id: str, title: str) -> ResponseSummary:
        """Give a response a title; an empty one is the beginning of its text again. Raises NotFound."""
        if not await self._store.in_writer(self._store.name, response_id, key.id, title or None):
            raise _not_found(response_id)
        return _summary(*await self._find(key, response_id))

    async def delete_tree(self, key: Key, response_id: str) -> list[str]:
        """Delete a response and all that continue it; those that run are cancelled. Returns their ids. Raises NotFound
        and RunsElsewhere."""
        ids = await self._store.in_reader(self._store.find_tree, response_id, key.id)
        if not ids:
            raise _not_found(response_id)
        for each in ids:
            await self.delete(key, each)
        return ids

    async def list_inputs(
        self, key: Key, response_id: str, limit: int, order: Order, after: str | None
    ) -> InputItemList:
        """Return a page of input items. Raises NotFound or BadRequest."""
        _, items = await self._find(key, response_id)
        inputs = [item for item in items if item.side == "input"]
        if order == "desc":
            inputs.reverse()
        if after is not None:
            ids = [item.id for item in inputs]
            if after not in ids:
                raise BadRequest(f"There is no input item '{after}' in this response.", param="after")
            inputs = inputs[ids.index(after) + 1 :]
        page = await render_page(inputs[:limit], self._storage)
        return item_list(page, has_more=len(inputs) > len(page))

    async def find_retried(self, key: Key, retry: RetryInfo) -> ActiveResponse | None:
        """Find the response that this request retries, running or ended. Raises KeyReused or Conflict."""
        if retry.idempotency_key is None:
            return await self._find_equal(key, retry)
        running = self._active.find_keyed(key.id, ENDPOINT, retry.idempotency_key)
        if running is not None:
            check_fingerprint(running.record.fingerprint, retry)
            return running
        recorded = await self._store.in_reader(self._store.find_keyed, retry.idempotency_key, key.id)
        if recorded is None:
            return None
        record, items = recorded
        check_fingerprint(record.fingerprint, retry)
        if record.running:
            message = "A response with this Idempotency-Key runs on another server. Try again in a moment."
            raise RunsElsewhere(message, owner=record.owner, key_id=key.id)
        return await self._replay(record, items)

    async def _find_equal(self, key: Key, retry: RetryInfo) -> ActiveResponse | None:
        identity = retry.identity(key.id, ENDPOINT)
        read = partial(self._store.find_by_fingerprint, key.id, retry.fingerprint, RETRY_WINDOW_S)
        earlier = await self._equal_calls.find(self._active, read, identity, retry)
        if earlier is None or isinstance(earlier, ActiveResponse):
            return earlier
        mark = partial(self._store.retry_in_writer, self._store.mark_delivered, earlier.id)
        if not (earlier.delivered or await mark()):  # another gateway has just given it to another retry
            return None
        recorded = await self._store.in_reader(self._store.find_for_retry, earlier.id)
        replayed = await self._replay(*recorded) if recorded else None
        if replayed is not None and not earlier.delivered:
            lost = replayed
            lost.when_left(lambda: None if lost.answered else self._spawn(mark(delivered=False)))
        return replayed

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self._background.spawn(work)

    async def _replay(self, record: StoredResponse, items: Sequence[StoredItem]) -> ActiveResponse:
        whole = await self._storage.in_thread(self._object, record, items)
        events = await self._storage.in_thread(self._recorded_events, record, items)
        return ActiveResponse.replay(record, whole["output"], events)

    async def _find(self, key: Key, response_id: str) -> tuple[StoredResponse, list[StoredItem]]:
        recorded = await self._store.in_reader(self._store.find, response_id, key.id)
        if recorded is None:
            raise _not_found(response_id)
        return recorded

    async def _find_here(self, key: Key, response_id: str) -> tuple[StoredResponse, list[StoredItem]]:
        """Find a response that does not run on another server. Raises NotFound and RunsElsewhere."""
        record, items = await self._find(key, response_id)
        if record.running and record.owner != self._owner:
            message = f"The response '{response_id}' runs on another server. Try again in a moment."
            raise RunsElsewhere(message, owner=record.owner, key_id=key.id)
        return record, items

    def _object(self, record: StoredResponse, items: Sequence[StoredItem]) -> ResponseObject:
        output = [cast("OutputItem", render(item, self._storage)) for item in items if item.side == "output"]
        status = cast(ResponseStatus, record.state)
        return response_object(record.id, record.created_at, record.echo, status, output, record.ended)

    def _recorded_events(self, record: StoredResponse, items: Sequence[StoredItem]) -> list[Event]:
        """Return the recorded events, with the images' bytes put back. Of a response whose server died, only the last
        event is left."""
        drawn = [cast("ImageCall", render(item, self._storage)) for item in items if item.image is not None]
        images = {item["id"]: item["result"] for item in drawn}
        if record.events or record.running:
            return [with_images(event, images) for event in record.events or ()]
        last = TERMINAL[cast(ResponseStatus, record.state)]
        return [{"type": last, "sequence_number": LOST_STREAM, "response": self._object(record, items)}]


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="id")


def _require_background(record: StoredResponse, action: str) -> None:
    if not record.background:
        message = (
            f"Cannot {action} a synchronous response. Only those that were created with 'background': true can be."
        )
        raise BadRequest(message, param="id")


async def _events_after(events: Sequence[Event], after: int) -> AsyncIterator[Event]:
    for event in events:
        if event["sequence_number"] > after:
            yield event


def _summary(record: StoredResponse, inputs: Sequence[StoredItem]) -> ResponseSummary:
    said = (text for item in inputs if item.body.get("role") == "user" for text in _texts(item.body.get("content")))
    model = record.echo.get("model")
    return ResponseSummary.describe(
        record,
        model=model if isinstance(model, str) else None,
        status=record.state,
        previous_response_id=record.previous_id,
        title=record.title or " ".join(next(said, "").split())[:TITLE_LENGTH],
    )


def _texts(content: object) -> Iterator[str]:
    """Yield the texts of a message's content: a string, or parts."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
