"""Collects facts about a request that runs a model, for its log line and its row in the log of calls.

A request's task, and every task that it starts, sees the same trace. So a call that goes on without its client, or in
the background, adds to it until it ends.
"""

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

CLIENT_LEFT = 499  # the status of a request whose client left before its end, as nginx has it


@dataclass(slots=True)
class CallTrace:
    """One request. Seconds are of the device; `price` is in 1/10000 CNY. `runs_model`: it asked for the work of a
    model.

    `status` is that of a failure that the answer's own status could not tell. `code`, `message` and `param` are those
    of the error that it ended with.
    """

    request_id: str = ""
    created_at: float = field(default_factory=time.time)
    key_id: str | None = None
    runs_model: bool = False
    model: str | None = None
    job: str | None = None
    status: int | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None
    queue_s: float | None = None
    run_s: float | None = None
    wake_s: float = 0.0  # estimated, of workers that had to be woken
    price: int = 0
    images: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt: str | None = None
    parameters: Mapping[str, Any] | None = None
    _open: int = 0
    _finish: Callable[[], None] | None = None

    def fail(self, code: str, message: str | None = None, param: str | None = None) -> None:
        """Record the error that the request ended with."""
        self.code, self.message, self.param = code, message, param

    def add_run(self, run_s: float, queue_s: float | None) -> None:
        """Add a job of the request that has run."""
        self.run_s = (self.run_s or 0.0) + run_s
        if queue_s is not None:
            self.queue_s = (self.queue_s or 0.0) + queue_s

    def add_tokens(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Add the tokens of a chat of the request."""
        self.prompt_tokens = (self.prompt_tokens or 0) + prompt_tokens
        self.completion_tokens = (self.completion_tokens or 0) + completion_tokens

    def add_charge(self, price: int, images: int) -> None:
        """Add a charge of the request. `price` is in 1/10000 CNY."""
        self.price += price
        self.images += images

    @property
    def runs(self) -> bool:
        """Return whether something of the request runs."""
        return self._open > 0

    def open(self) -> Callable[[], None]:
        """Keep the trace open while something of the request runs, until the function that is returned is called."""
        self._open += 1
        return self._close

    def when_complete(self, finish: Callable[[], None]) -> None:
        """Call `finish` once nothing of the request runs. Its answer has been sent."""
        self._finish = finish
        self._settle()

    def _close(self) -> None:
        self._open -= 1
        self._settle()

    def _settle(self) -> None:
        if self._finish is not None and not self._open:
            finish, self._finish = self._finish, None
            finish()


_current: ContextVar[CallTrace] = ContextVar("call_trace")


def begin_trace(request_id: str) -> CallTrace:
    """Begin the trace of the request whose task this is, and return it."""
    trace = CallTrace(request_id)
    _current.set(trace)
    return trace


def current_trace() -> CallTrace:
    """Return the trace of the request that this task belongs to; one that nobody reads outside of requests."""
    return _current.get(None) or CallTrace()
