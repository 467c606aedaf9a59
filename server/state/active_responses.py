"""Responses that run. A response tells events; clients listen from any of them on, leave, and come back."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any
from weakref import WeakValueDictionary

from server.accounts.responses import StoredResponse
from server.errors import ApiError
from server.schemas.response_object import Json, ResponseStatus, response_object
from server.state.detached_task import FOREVER, Listened
from server.state.expected_retries import Same

TERMINAL: Mapping[ResponseStatus, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}


def same_response(key_id: str, fingerprint: str) -> Same:
    """What equal responses have in common."""
    return key_id, "responses", fingerprint


class LiveResponse(Listened):
    """One response and what it has told so far. Everything on one event loop."""

    def __init__(
        self, record: StoredResponse, *, recorded: bool, patience_s: float = 0.0, replayed: bool = False
    ) -> None:
        super().__init__(FOREVER if record.lasting else patience_s)
        self.record = record
        self.recorded = recorded  # in the database: it is stored, or a retry may ask for it
        self.replayed = replayed
        self.status: ResponseStatus = "queued" if record.background else "in_progress"
        self.output: list[Json] = []
        self.events: list[Json] = []
        self.ended: Mapping[str, Any] | None = None
        self.failure: ApiError | None = None  # why it failed, for who still waits for the status of an answer
        self.charged = False  # a picture of it is stored and paid for, so it must be delivered
        self.cancelled = False  # but the picture that was being paid for is delivered first
        self.admitted = False
        self.stopping = False  # the server ends, and this with it
        self._news = asyncio.Event()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.ended is not None

    @property
    def same(self) -> Same:
        """What it has in common with responses that ask for the same."""
        return same_response(self.record.key_id, self.record.fingerprint or "")

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the work in a task of the server's."""
        task = self._task = asyncio.create_task(work, name=self.record.id)
        return task

    def object(self) -> Json:
        """The response as it is now."""
        record = self.record
        return response_object(record.id, record.created_at, record.echo, self.status, self.output, self.ended)

    def tell(self, kind: str, **fields: Any) -> None:
        """The next event."""
        self.events.append({"type": kind, "sequence_number": len(self.events), **fields})
        self._notify()

    def tell_state(self, kind: str) -> None:
        """An event that carries the whole response."""
        self.tell(kind, response=self.object())

    def admit(self) -> None:
        """The request is sound; from here on it is a matter of time."""
        self.admitted = True
        self._notify()

    def end(self, status: ResponseStatus, ended: Mapping[str, Any], failure: ApiError | None = None) -> None:
        """Nothing more will happen."""
        self.status, self.ended, self.failure = status, ended, failure
        if failure is not None:
            error = failure.body()["error"]
            self.tell("error", code=error["code"], message=error["message"], param=error["param"], error=error)
        self.tell_state(TERMINAL[status])

    async def admission(self) -> None:
        """Until the status of an answer is known. Raises ApiError."""
        while not self.admitted and self.ended is None:
            await self._news.wait()
        if self.failure is not None:
            raise self.failure

    async def end_of_it(self) -> None:
        """Until it has ended."""
        while self.ended is None:
            await self._news.wait()

    async def follow(self, after: int = -1) -> AsyncIterator[Json]:
        """Every event after the one of that number, as soon as it is there, to the last."""
        told = max(0, after + 1)
        while True:
            for event in self.events[told:]:
                told += 1
                yield event
            if self.ended is not None:
                return
            if told >= len(self.events):
                await self._news.wait()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class LiveResponses:
    """All responses that have not ended."""

    def __init__(self) -> None:
        self._responses: dict[str, LiveResponse] = {}
        self._openings: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._responses)

    def start(self, live: LiveResponse, work: Coroutine[Any, Any, None]) -> None:
        """Run the response; it is found here until it has ended."""
        response_id = live.record.id
        self._responses[response_id] = live
        live.begin(work).add_done_callback(lambda _: self._responses.pop(response_id, None))

    def of_key(self, key_id: str) -> int:
        """How many a key has running."""
        return sum(live.record.key_id == key_id and live.ended is None for live in self._responses.values())

    def find(self, response_id: str, key_id: str) -> LiveResponse | None:
        """The response with this id, if it is this key's and may be asked for."""
        live = self._responses.get(response_id)
        return live if live is not None and live.record.stored and live.record.key_id == key_id else None

    def find_keyed(self, idempotency_key: str, key_id: str) -> LiveResponse | None:
        """The response that an Idempotency-Key of this key names."""
        wanted = (idempotency_key, key_id)
        running = self._responses.values()
        return next((one for one in running if (one.record.idempotency_key, one.record.key_id) == wanted), None)

    def find_alike(self, same: Same) -> LiveResponse | None:
        """The response that a retry without a key is about: of equal ones that nobody listens to, else of all equal
        ones, the newest."""
        alike = [live for live in self._responses.values() if live.same == same and not live.abandoned]
        unkeyed = [live for live in alike if not live.record.lasting]
        return max(reversed(unkeyed), key=lambda live: not live.heard, default=None)

    def opening(self, known_by: str, key_id: str) -> asyncio.Lock:
        """Held while a request with this Idempotency-Key or fingerprint looks for an earlier one and may begin."""
        return self._openings.setdefault((known_by, key_id), asyncio.Lock())

    async def stop(self) -> None:
        """End every response and wait until the books say so."""
        running = list(self._responses.values())
        for live in running:
            live.stopping = True
            live.cancel()
        for live in running:
            await live.end_of_it()
