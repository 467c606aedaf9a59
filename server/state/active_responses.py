"""Responses that run.

A response moves through the phases below, each move made by one method of ActiveResponse:

    QUEUED ──start──> STARTING ──admit──> ADMITTED ──mark_charged──> CHARGED
       └────────────────┴──────── end ───────┴──────────────────────────┘──> ENDED

`start`, `admit` and `end` are called by the tool loop alone, `mark_charged` by the image tool alone.
"""

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, cast

from server.accounts.calls import CallId
from server.accounts.responses import StoredResponse
from server.errors import ApiError, Overloaded
from server.schemas.response_answers import OutputItem
from server.schemas.response_events import Event, ItemPlace, SnapshotKind
from server.schemas.response_object import ResponseObject, ResponseOutcome, ResponseStatus, response_object
from server.state.active_job import ActiveJob, ActiveJobs
from server.state.tasks import FOREVER

ENDPOINT = "responses"
TERMINAL: Mapping[ResponseStatus, SnapshotKind] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}


class Phase(Enum):
    """How far a response has come."""

    QUEUED = "queued"  # in the background: recorded, not begun
    STARTING = "starting"  # its request is being checked
    ADMITTED = "admitted"  # the request is sound: the answer has status 200
    CHARGED = "charged"  # an image of it is stored and paid for, so the response must be delivered
    ENDED = "ended"


MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.STARTING, Phase.ENDED}),
    Phase.STARTING: frozenset({Phase.ADMITTED, Phase.ENDED}),
    Phase.ADMITTED: frozenset({Phase.CHARGED, Phase.ENDED}),
    Phase.CHARGED: frozenset({Phase.CHARGED, Phase.ENDED}),
    Phase.ENDED: frozenset(),
}


class IllegalTransition(RuntimeError):
    """A phase that can't follow the present one: a defect of the server's."""


class ActiveResponse(ActiveJob[Event]):
    """One response, its output items and its events so far.

    `recorded`: it has, or will have, a row in the database, since it is stored or a retry may ask for it.
    """

    def __init__(self, record: StoredResponse, *, recorded: bool, grace_s: float = 0.0, replayed: bool = False) -> None:
        call = CallId(record.id, record.key_id, ENDPOINT, record.fingerprint or "", record.idempotency_key)
        super().__init__(call, FOREVER if record.survives_disconnect else grace_s, replayed=replayed)
        self.record = record
        self.recorded = recorded
        self.phase = Phase.QUEUED if record.background else Phase.STARTING
        self.status: ResponseStatus = "queued" if record.background else "in_progress"
        self.output: list[OutputItem] = []
        self.unused_options: tuple[str, ...] = ()  # of the chat template; known when it is admitted
        self.unread: tuple[str, ...] = ()  # paths of what else has no effect
        self.ended: ResponseOutcome | None = None  # what only the end knows: usage, error, completed_at

    @classmethod
    def replay(cls, record: StoredResponse, output: list[OutputItem], events: list[Event]) -> "ActiveResponse":
        """Return a response that ended before, to be followed like one that runs."""
        replayed = cls(record, recorded=True, replayed=True)
        replayed.output, replayed.events, replayed.ended = output, events, record.ended
        replayed.phase, replayed.status = Phase.ENDED, cast(ResponseStatus, record.state)
        return replayed

    @property
    def done(self) -> bool:
        """Return whether the response has ended."""
        return self.phase is Phase.ENDED

    @property
    def admitted(self) -> bool:
        """Return whether the response is admitted: its request was checked, and is valid."""
        return self.phase in {Phase.ADMITTED, Phase.CHARGED}

    @property
    def charged(self) -> bool:
        """Return whether an image of the response is charged."""
        return self.phase is Phase.CHARGED

    @property
    def joinable_by_key(self) -> bool:
        """Return True, also for a response that is being cancelled: the key names its end."""
        return True

    def object(self) -> ResponseObject:
        """Return the response object as it is now."""
        record = self.record
        return response_object(record.id, record.created_at, record.echo, self.status, self.output, self.ended)

    @property
    def next_number(self) -> int:
        """Return the sequence number of the next event."""
        return len(self.events)

    def place(self, item_id: str, index: int) -> ItemPlace:
        """Return where the next event belongs, if it is of this item."""
        return {"sequence_number": self.next_number, "item_id": item_id, "output_index": index}

    def emit(self, event: Event) -> None:
        """Append the next event."""
        self.events.append(event)
        self._notify()

    def emit_snapshot(self, kind: SnapshotKind) -> None:
        """Append an event that carries the whole response object."""
        self.emit({"type": kind, "sequence_number": self.next_number, "response": self.object()})

    def emit_item(
        self, kind: Literal["response.output_item.added", "response.output_item.done"], index: int, item: OutputItem
    ) -> None:
        """Append an event that carries an item, which begins or is done."""
        self.emit({"type": kind, "sequence_number": self.next_number, "output_index": index, "item": item})

    def start(self) -> None:
        """Record that a background response has left the queue."""
        self._move(Phase.STARTING)
        self.status = "in_progress"

    def admit(self) -> None:
        """Mark the response as admitted: its request was checked, and is valid."""
        self._move(Phase.ADMITTED)
        self._notify()

    def mark_charged(self, index: int, item: OutputItem) -> None:
        """Record that the image of this output item is stored and charged."""
        self._move(Phase.CHARGED)
        self.output[index] = item

    def end(self, status: ResponseStatus, ended: ResponseOutcome, failure: ApiError | None = None) -> None:
        """Set the end and emit its events."""
        self._move(Phase.ENDED)
        self.status, self.ended, self.failure = status, ended, failure
        if failure is not None:
            error = failure.body()["error"]
            self.emit(
                {
                    "type": "error",
                    "sequence_number": self.next_number,
                    "code": error["code"],
                    "message": error["message"],
                    "param": error["param"],
                    "error": error,
                }
            )
        self.emit_snapshot(TERMINAL[status])

    def _move(self, phase: Phase) -> None:
        if phase not in MOVES[self.phase]:
            raise IllegalTransition(f"{self.call.id}: {self.phase.value} -> {phase.value}")
        self.phase = phase

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        if not self.done:  # cancelled before its first step
            self.end("failed", {}, Overloaded("The response was stopped before it began. Please send it again.", 2))


class ActiveResponses(ActiveJobs[ActiveResponse]):
    """Registry of responses."""

    def find_stored(self, response_id: str, key_id: str) -> ActiveResponse | None:
        """Return the response with this id, if it is this key's and is stored: others can't be asked for."""
        response = self.find(response_id, key_id)
        return response if response is not None and response.record.stored else None
