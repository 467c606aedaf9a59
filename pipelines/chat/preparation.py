"""The threads on which chats are prepared: their prompts, their grammars, their pictures.

Each key has one at a time, and keys take turns, so what one of them sends keeps no other waiting. What takes too long,
and what nobody waits for any more, is interrupted.
"""

import asyncio
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar, cast

THREADS: Final = 8  # they share the interpreter, and what is left of the processor
LIMIT_S: Final = 30.0

Result = TypeVar("Result")
Outcome = tuple[Any, BaseException | None]  # what a call returns, or raises


class Interrupted(BaseException):
    """The thread was told to give up what it does. No library that catches Exception takes it for one of its own."""


class TookTooLong(Interrupted):
    """What it did has taken longer than its limit."""


class _Work:
    """One call, which any thread may interrupt."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._thread: int | None = None  # that it runs on
        self._given_up: type[Interrupted] | None = None

    def run(self) -> Any:
        """Make the call. Raises what it raises, and Interrupted."""
        with self._lock:
            if self._given_up is not None:
                raise self._given_up
            self._thread = threading.get_ident()
        try:
            return self._call()
        finally:
            with self._lock:  # from here on, none comes
                self._thread = None

    def interrupt(self, error: type[Interrupted]) -> None:
        """Raise the error in the call, as soon as it is in Python: a library's own code runs to its end."""
        with self._lock:
            if self._thread is not None and self._given_up is None:  # once: a late one would hit another call
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(error))
            self._given_up = self._given_up or error


def run_within(limit_s: float, call: Callable[[], Result]) -> Result:
    """Make a call on this thread. Raises TookTooLong if it has not ended by then."""
    work = _Work(call)
    limit = threading.Timer(limit_s, work.interrupt, [TookTooLong])
    limit.daemon = True
    limit.start()
    try:
        return cast(Result, work.run())
    finally:
        limit.cancel()


class Preparation:
    """The threads, and what waits for them. Use it on one event loop."""

    def __init__(self, threads: int = THREADS, limit_s: float = LIMIT_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="prompts")
        self._free = threads
        self._limit_s = limit_s
        self._waiting: dict[str, deque[tuple[_Work, asyncio.Future[Any]]]] = {}  # by key; the first has the next turn
        self._running: set[str] = set()  # keys

    async def run(self, owner: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a function returns that runs for this key, and raise what it raises. If this is cancelled, the
        function is interrupted. Raises TookTooLong."""
        work, ended = _Work(partial(function, *arguments)), self._loop.create_future()
        self._waiting.setdefault(owner, deque()).append((work, ended))
        self._start()
        try:
            return cast(Result, await ended)
        finally:
            work.interrupt(Interrupted)

    def _start(self) -> None:
        """Start what waits, one of each key, while threads are free. A key goes behind the others with it."""
        for owner in [each for each in self._waiting if each not in self._running]:
            if not self._free:
                return
            mine = self._waiting.pop(owner)
            work, ended = mine.popleft()
            if mine:
                self._waiting[owner] = mine
            self._running.add(owner)
            self._free -= 1
            limit = self._loop.call_later(self._limit_s, work.interrupt, TookTooLong)
            done = self._loop.run_in_executor(self._threads, _outcome, work)
            done.add_done_callback(partial(self._end, owner, limit, ended))

    def _end(
        self, owner: str, limit: asyncio.TimerHandle, ended: asyncio.Future[Any], done: asyncio.Future[Outcome]
    ) -> None:
        limit.cancel()
        self._running.remove(owner)
        self._free += 1
        result, error = (None, done.exception()) if done.exception() else done.result()
        if not ended.done():  # else nobody waits for it any more
            if error is None:
                ended.set_result(result)
            else:
                ended.set_exception(error)
        self._start()


def _outcome(work: _Work) -> Outcome:
    """Return what a call returns, or raises: a future can't pass on every exception."""
    try:
        return work.run(), None
    except StopIteration as error:  # which a future takes for its own end
        return None, RuntimeError(f"raised {error!r}")
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return None, error
