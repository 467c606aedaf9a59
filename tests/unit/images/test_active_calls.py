"""An image call belongs to the server: clients attach, leave and come back."""

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest

from pipelines.protocol.images import EncodedImage, Preview, Progress, Started
from server.accounts.calls import CallId
from server.errors import BadRequest, EngineFailure, Overloaded
from server.schemas.images import ImageAnswer, Usage
from server.state.active_calls import ActiveCall, ActiveCalls, ImageResult, ImageShape
from server.state.tasks import FOREVER
from tests.support.polling import eventually

SHAPE = ImageShape("256x256", "high", "png")
USAGE = Usage(input_tokens=1, input_tokens_details={}, output_tokens=2, output_tokens_details={}, total_tokens=3)
RESULT = ImageResult(
    "img_1",
    ImageAnswer(created=1, data=[], output_format="png", quality="high", size="256x256", usage=USAGE, parameters={}),
    ("a.png",),
    "url",
)
IDENTITY = ("key_1", "images.generations", "print")


def new_call(grace_s: float, call_id: str = "img_1", key: str | None = None, *, is_nested: bool = False) -> ActiveCall:
    return ActiveCall(CallId(call_id, "key_1", "images.generations", "print", key), grace_s, is_nested=is_nested)


def preview(number: int) -> Preview:
    return Preview(0, number, EncodedImage(b"", "image/png", 8, 8, 1))


class Work:
    """A call's work that waits for `proceed`."""

    def __init__(self) -> None:
        self.proceed = asyncio.Event()
        self.cancelled = False

    async def run(self, call: ActiveCall) -> ImageResult:
        call.admit(SHAPE)
        call.report(preview(0))
        try:
            await self.proceed.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        call.report(preview(1))
        return RESULT


def start(work: Work, grace_s: float) -> tuple[ActiveCalls, ActiveCall]:
    calls, call = ActiveCalls(), new_call(grace_s)
    return calls, calls.start(call, work.run(call))


def fail(error: Exception) -> Coroutine[Any, Any, ImageResult]:
    async def work() -> ImageResult:
        raise error

    return work()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_every_listener_gets_every_preview_and_the_result() -> None:
    work = Work()
    calls, call = start(work, 0)

    async def listen() -> list[int]:
        with call.listening():
            assert await call.admission() == SHAPE
            numbers = [item.number async for item in call.follow()]
            assert await call.result() is RESULT
            return numbers

    first = asyncio.create_task(listen())
    await settle()
    second = asyncio.create_task(listen())
    await settle()
    work.proceed.set()
    assert await first == await second == [0, 1]
    assert len(calls) == 0


async def test_a_call_without_grace_is_cancelled_when_its_last_listener_leaves() -> None:
    work = Work()
    calls, call = start(work, 0)
    with call.listening():
        with call.listening():
            await settle()
        await settle()
        assert not work.cancelled
    await settle()
    assert work.cancelled
    assert call.cancelled
    assert len(calls) == 0


async def test_a_listener_that_comes_back_within_the_grace_period_keeps_the_call() -> None:
    work = Work()
    _, call = start(work, 0.05)
    with call.listening():
        await settle()
    with call.listening():
        await asyncio.sleep(0.1)
        assert not work.cancelled
    await eventually(lambda: work.cancelled)


async def test_a_call_with_endless_grace_goes_on_without_listeners() -> None:
    work = Work()
    _, call = start(work, FOREVER)
    with call.listening():
        await settle()
    work.proceed.set()
    assert await call.result() is RESULT


async def test_a_failure_before_admission_is_raised_to_whoever_waits_for_it() -> None:
    call = ActiveCalls().start(new_call(0), fail(BadRequest("no", param="size")))
    with pytest.raises(BadRequest):
        await call.admission()
    with pytest.raises(BadRequest):
        await call.result()


async def test_an_unexpected_exception_is_a_failure_of_the_server() -> None:
    call = ActiveCalls().start(new_call(0), fail(OSError(28, "No space left on device")))
    with pytest.raises(EngineFailure, match="nothing was charged"):
        await call.result()


async def test_cancelling_a_waiter_does_not_cancel_the_call() -> None:
    work = Work()
    _, call = start(work, FOREVER)
    waiting = asyncio.create_task(call.result())
    await settle()
    waiting.cancel()
    await settle()
    work.proceed.set()
    assert await call.result() is RESULT


async def test_stopping_ends_every_call_and_its_listeners_learn_of_it() -> None:
    work = Work()
    calls, call = start(work, FOREVER)
    with call.listening():
        await settle()
        await calls.stop()
        with pytest.raises(Overloaded):
            await call.result()
    assert work.cancelled


async def test_a_call_that_is_stopped_before_its_first_step_ends() -> None:
    calls, call = start(Work(), FOREVER)
    async with asyncio.timeout(60):
        await calls.stop()
    assert call.done
    assert len(calls) == 0


async def test_progress_and_state_follow_the_engine() -> None:
    call = new_call(0)
    assert call.state == "queued"
    call.report(Started())
    call.report(Progress(3, 20))
    assert (call.state, call.progress) == ("running", Progress(3, 20))


async def test_a_key_names_its_call_until_that_is_cancelled() -> None:
    calls, work, call = ActiveCalls(), Work(), new_call(FOREVER, key="mine")
    calls.start(call, work.run(call))
    assert calls.find_keyed("key_1", "images.generations", "mine") is call
    assert calls.find_keyed("key_2", "images.generations", "mine") is None
    assert calls.find_keyed("key_1", "images.edits", "mine") is None
    assert (calls.find("img_1", "key_1"), calls.find("img_1", "key_2")) == (call, None)
    call.cancel()
    assert calls.find_keyed("key_1", "images.generations", "mine") is None
    await settle()


async def test_equal_calls_are_found_in_their_order_and_those_that_lost_their_client_are_known() -> None:
    calls = ActiveCalls()
    first, second, third = (new_call(9, f"img_{i}") for i in range(3))
    keyed, nested = new_call(9, "img_8", "a key"), new_call(9, "img_9", is_nested=True)
    for call in (first, second, third, keyed, nested):
        calls.start(call, Work().run(call))
    assert not first.has_lost_client  # its client has not been attached yet
    with nested.listening(), first.listening():
        with second.listening():
            pass
        nested.cancel()
        assert calls.find_equal(IDENTITY) == [first, second, third]
        assert [call.has_lost_client for call in (first, second, third)] == [False, True, False]
    assert calls.find_equal(("key_1", "images.generations", "another")) == []
    assert (calls.count("key_1"), calls.count("key_2")) == (4, 0)
    await settle()
    await calls.stop()
    assert len(calls) == 0


async def test_an_ended_call_is_found_as_long_as_its_answer_is_on_its_way() -> None:
    work, written = Work(), []

    async def record_arrival() -> None:
        written.append("arrived")

    calls, call = start(work, 9)
    call.record_arrival = record_arrival
    with call.listening():
        work.proceed.set()
        await call.result()
        await settle()
        assert (len(calls), calls.find_equal(IDENTITY)) == (0, [call])
        with call.listening():
            await call.confirm_arrival()
        assert calls.find_equal(IDENTITY) == [call]
    assert calls.find_equal(IDENTITY) == []
    assert (written, call.has_lost_client) == (["arrived"], False)


async def test_what_a_failed_call_has_read_is_free_at_once() -> None:
    """And not when Python's collector has run: a few bodies of 60 MB come before that."""

    class Body:
        """What a request has sent."""

    bodies: list[weakref.ref[Body]] = []

    async def work(call: ActiveCall) -> ImageResult:
        body = Body()
        bodies.append(weakref.ref(body))
        try:
            int("", base=0)  # as the decoder refuses it
        except ValueError as error:
            raise BadRequest(f"{call.call.id} has a bad image") from error

    gc.disable()
    try:
        calls, call = ActiveCalls(), new_call(FOREVER)
        calls.start(call, work(call))
        with pytest.raises(BadRequest):
            await call.result()
        await asyncio.sleep(0)
        assert [body() for body in bodies] == [None]
        ended: list[str] = []
        call.when_done(lambda: ended.append("at once"))
        assert ended == ["at once"]
    finally:
        gc.enable()


def test_previews_that_are_drawn_again_are_told_once() -> None:
    """A call that runs out of memory while its file is decoded starts again, here or on a larger GPU."""
    call = new_call(9)
    for event in (Started(), preview(0), preview(1), Started(), preview(0), preview(1), preview(2)):
        call.report(event)
    assert call.events == [preview(0), preview(1), preview(2)]
