"""The threads that prepare chats: keys take turns, and what takes too long or is left is interrupted."""

import asyncio
import threading

import pytest

from pipelines.chat.preparation import Interrupted, Preparation, TookTooLong, run_within


def endless(began: threading.Event, ends: list[type[BaseException]]) -> None:
    try:
        began.set()
        while True:
            pass
    except BaseException as error:
        ends.append(type(error))
        raise


async def test_a_key_that_has_a_thread_leaves_the_others_free() -> None:
    preparation, gate = Preparation(threads=2), threading.Event()
    held = [asyncio.create_task(preparation.run("hog", gate.wait)) for _ in range(10)]
    assert await preparation.run("guest", lambda: "done") == "done", "beside one of the ten"
    gate.set()
    assert await asyncio.gather(*held) == [True] * 10


async def test_keys_take_turns_where_threads_are_few() -> None:
    preparation, gate = Preparation(threads=1), threading.Event()
    first = asyncio.create_task(preparation.run("first", gate.wait))
    await asyncio.sleep(0)
    order: list[str] = []
    tasks = [
        asyncio.create_task(preparation.run(name[0], order.append, name))
        for name in ("a1", "a2", "a3", "b1", "c1", "c2")
    ]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, *tasks)
    assert order == ["a1", "b1", "c1", "a2", "c2", "a3"]


async def test_what_nobody_waits_for_any_more_is_interrupted_and_frees_its_thread() -> None:
    preparation, began, ends = Preparation(threads=1), threading.Event(), list[type[BaseException]]()
    left = asyncio.create_task(preparation.run("key", endless, began, ends))
    queued = asyncio.create_task(preparation.run("key", pytest.fail, "it was left before it began"))
    await asyncio.to_thread(began.wait)
    queued.cancel()
    left.cancel()
    assert await preparation.run("key", lambda: "next") == "next"
    assert ends == [Interrupted]


async def test_what_takes_too_long_is_interrupted_with_a_name() -> None:
    preparation, ends = Preparation(threads=1, limit_s=0.01), list[type[BaseException]]()
    with pytest.raises(TookTooLong):
        await preparation.run("key", endless, threading.Event(), ends)
    assert ends == [TookTooLong]
    assert await preparation.run("key", lambda: "next") == "next"


async def test_errors_are_passed_on() -> None:
    preparation = Preparation(threads=1)
    with pytest.raises(ZeroDivisionError):
        await preparation.run("key", lambda: 1 // 0)
    with pytest.raises(KeyboardInterrupt):
        await preparation.run("key", _panic)


def _panic() -> None:
    raise KeyboardInterrupt


async def test_a_stop_iteration_ends_its_call_and_not_the_threads() -> None:
    """A future refuses one as its error: the call waited for ever."""
    preparation = Preparation(threads=1)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(preparation.run("a", next, iter(())), 30)
    assert await preparation.run("a", lambda: "done") == "done"


async def test_interrupts_never_hit_the_next_call_of_the_thread() -> None:
    preparation = Preparation(threads=1)
    for number in range(300):
        task = asyncio.create_task(preparation.run("key", sum, range(200 * (number % 7))))
        await asyncio.sleep(0)
        task.cancel()
        assert await preparation.run("key", lambda number=number: number) == number


def test_a_call_on_the_own_thread_has_a_limit_too() -> None:
    with pytest.raises(TookTooLong):
        run_within(0.01, lambda: endless(threading.Event(), []))
    assert run_within(60, lambda: 5) == 5
