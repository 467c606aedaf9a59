"""A call belongs to the server: who listens, who leaves, who comes back."""

import asyncio

import pytest

from pipelines.protocol.images import EncodedImage, Preview, Progress, Started
from server.accounts.calls import CallId
from server.errors import ApiError, BadRequest, EngineFailure, Overloaded
from server.schemas.images import ImageAnswer, Usage
from server.state.active_calls import RunningCall, RunningCalls, Ticket
from server.state.detached_task import FOREVER
from server.state.image_result import ImageResult, ImageShape

SHAPE = ImageShape("256x256", "high", "png")
USAGE = Usage(input_tokens=1, input_tokens_details={}, output_tokens=2, output_tokens_details={}, total_tokens=3)
RESULT = ImageResult(
    "img_1",
    ImageAnswer(created=1, data=[], output_format="png", quality="high", size="256x256", usage=USAGE, parameters={}),
    ("a.png",),
    "url",
)


SAME = ("key_1", "images.generations", "print")


def ticket(patience_s: float, call_id: str = "img_1", key: str | None = None) -> Ticket:
    return Ticket(CallId(call_id, "key_1", "images.generations", "print", key), patience_s)


def preview(number: int) -> Preview:
    return Preview(0, number, EncodedImage(b"", "image/png", 8, 8, 1))


class Work:
    """A call's work that waits to be told."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.cancelled = False

    async def __call__(self, call: RunningCall) -> ImageResult:
        call.admit(SHAPE)
        call.report(preview(0))
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        call.report(preview(1))
        return RESULT


def start(work: Work, patience_s: float) -> tuple[RunningCalls, RunningCall]:
    calls = RunningCalls()
    return calls, calls.start(ticket(patience_s), work)


async def a_moment() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_every_listener_gets_every_preview_and_the_result() -> None:
    work = Work()
    calls, call = start(work, 0)

    async def listen() -> list[int]:
        with call.listening():
            assert await call.admission() == SHAPE
            numbers = [item.number async for item in call.previews()]
            assert await call.result() is RESULT
            return numbers

    first = asyncio.create_task(listen())
    await a_moment()
    second = asyncio.create_task(listen())
    await a_moment()
    work.go_on.set()
    assert await first == await second == [0, 1]
    assert len(calls) == 0


async def test_the_last_listener_to_leave_ends_an_impatient_call() -> None:
    work = Work()
    calls, call = start(work, 0)
    with call.listening():
        with call.listening():
            await a_moment()
        await a_moment()
        assert not work.cancelled
    await a_moment()
    assert work.cancelled
    assert call.abandoned
    assert len(calls) == 0


async def test_a_patient_call_waits_for_a_listener_to_come_back() -> None:
    work = Work()
    _, call = start(work, 0.05)
    with call.listening():
        await a_moment()
    with call.listening():
        await asyncio.sleep(0.1)
        assert not work.cancelled
    await asyncio.sleep(0.1)
    assert work.cancelled


async def test_a_call_with_all_patience_goes_on_alone() -> None:
    work = Work()
    _, call = start(work, FOREVER)
    with call.listening():
        await a_moment()
    work.go_on.set()
    assert await call.result() is RESULT


async def test_a_failure_before_admission_is_raised_to_who_waits_for_it() -> None:
    async def fail(_: RunningCall) -> ImageResult:
        raise BadRequest("no", param="size")

    call = RunningCalls().start(ticket(0), fail)
    with pytest.raises(BadRequest):
        await call.admission()


async def test_what_nobody_foresaw_is_a_failure_of_the_server() -> None:
    async def fail(_: RunningCall) -> ImageResult:
        raise OSError(28, "No space left on device")

    call = RunningCalls().start(ticket(0), fail)
    with pytest.raises(EngineFailure, match="nothing was charged"):
        await call.result()


async def test_who_stops_waiting_for_the_result_does_not_stop_the_call() -> None:
    work = Work()
    _, call = start(work, FOREVER)
    waiting = asyncio.create_task(call.result())
    await a_moment()
    waiting.cancel()
    await a_moment()
    work.go_on.set()
    assert await call.result() is RESULT


async def test_stopping_ends_every_call_and_tells_its_listeners() -> None:
    work = Work()
    calls, call = start(work, FOREVER)
    with call.listening():
        await a_moment()
        await calls.stop()
        with pytest.raises(Overloaded):
            await call.result()
    assert work.cancelled


async def test_progress_and_state_follow_the_engine() -> None:
    call = RunningCall(ticket(0))
    assert call.state == "queued"
    call.report(Started())
    call.report(Progress(3, 20))
    assert (call.state, call.progress) == ("running", Progress(3, 20))


async def test_the_end_is_waited_for_but_not_too_long() -> None:
    work = Work()
    _, call = start(work, FOREVER)
    assert not await call.ends_within(0.02)
    work.go_on.set()
    assert await call.ends_within(5)
    with pytest.raises(ApiError):
        await RunningCalls().start(ticket(0, "img_2"), _refuse).result()


async def _refuse(_: RunningCall) -> ImageResult:
    raise BadRequest("no")


async def test_a_key_names_its_call_and_an_abandoned_one_is_found_no_more() -> None:
    calls, work = RunningCalls(), Work()
    call = calls.start(ticket(FOREVER, key="mine"), work)
    assert calls.find_keyed("key_1", "images.generations", "mine") is call
    assert calls.find_keyed("key_2", "images.generations", "mine") is None
    assert calls.find_keyed("key_1", "images.edits", "mine") is None
    assert (calls.find("img_1", "key_1"), calls.find("img_1", "key_2")) == (call, None)
    call.cancel()
    assert calls.find_keyed("key_1", "images.generations", "mine") is None
    await a_moment()


async def test_a_retry_is_about_the_equal_call_that_nobody_listens_to() -> None:
    calls = RunningCalls()
    first, second, third = (calls.start(ticket(9, f"img_{i}"), Work()) for i in range(3))
    with first.listening(), third.listening():
        assert calls.find_alike(SAME) is second
        with second.listening():
            assert calls.find_alike(SAME) is third
    assert calls.find_alike(("key_1", "images.generations", "another")) is None
    assert (calls.of_key("key_1"), calls.of_key("key_2")) == (3, 0)
    await a_moment()
    await calls.stop()
    assert len(calls) == 0
