"""Threads by purpose: what goes with the work, and what becomes of work whose caller has left."""

import asyncio
import contextvars
import threading

import pytest

from server.threads import NotBegun, Threads
from tests.support.polling import eventually

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="none")


class Work:
    """Blocks its thread until it is released."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.release = threading.Event()
        self.ended = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.release.wait(60)
        self.ended.set()
        return "done"


async def test_the_context_of_the_caller_goes_with_the_work() -> None:
    threads = Threads("own", 1)
    for name in ("first", "second"):
        request_id.set(name)
        assert await threads.run(request_id.get) == name
        assert await threads.run_if_begun_within(60, request_id.get) == name
    assert (await threads.run(threading.current_thread)).name.startswith("own")


async def test_the_error_of_the_work_is_raised() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await Threads("own", 1).run(int, "x")


async def test_work_that_no_thread_was_free_for_never_begins() -> None:
    threads, first, second = Threads("own", 1), Work(), Work()
    running = asyncio.create_task(threads.run(first))
    await eventually(first.begun.is_set)
    with pytest.raises(NotBegun):
        await threads.run_if_begun_within(0.05, second)
    first.release.set()
    assert await running == "done"
    assert await threads.run(lambda: "next") == "next"
    assert not second.begun.is_set()


async def test_work_that_has_begun_is_awaited_to_its_end() -> None:
    threads, work, limit_s = Threads("own", 1), Work(), 0.5
    await threads.run(lambda: "its thread runs")
    running = asyncio.create_task(threads.run_if_begun_within(limit_s, work))
    await eventually(work.begun.is_set)
    await asyncio.sleep(limit_s)  # the limit is over: its timer was set before this one
    assert not running.done()
    work.release.set()
    assert await running == "done"


@pytest.mark.parametrize("limited", [False, True])
async def test_of_a_cancelled_caller_only_work_that_has_begun_is_done(limited: bool) -> None:
    threads, first, second = Threads("own", 1), Work(), Work()
    tasks = [
        asyncio.create_task(threads.run_if_begun_within(60, work) if limited else threads.run(work))
        for work in (first, second)
    ]
    await eventually(first.begun.is_set)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    first.release.set()
    second.release.set()
    assert await threads.run(lambda: "next") == "next"
    assert first.ended.is_set()
    assert not second.begun.is_set()
