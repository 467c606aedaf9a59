"""Whose image is decoded next."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from server.backends.decoding.fair_semaphore import FairSemaphore
from tests.support.polling import eventually


class Decoders:
    """Turns that are recorded, and end when they are told to."""

    def __init__(self, per_owner: int = 1) -> None:
        self.turns = FairSemaphore(2, per_owner)
        self.running: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def request(self, name: str, *, large: bool = False) -> None:
        """An image of the owner that the name begins with."""
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._run(name, large))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _run(self, name: str, large: bool) -> None:
        async with self.turns.take(name[0], large=large):
            self.running.append(name)
            await self._ends[name].wait()
            self.running.remove(name)


@asynccontextmanager
async def cancelled_at_the_end(decoders: Decoders) -> AsyncIterator[None]:
    yield
    for task in decoders.tasks.values():
        task.cancel()
    await asyncio.gather(*decoders.tasks.values(), return_exceptions=True)


@pytest.fixture
async def decoders() -> AsyncIterator[Decoders]:
    made = Decoders()
    async with cancelled_at_the_end(made):
        yield made


async def test_an_owner_has_one_turn_and_others_overtake_its_next(decoders: Decoders) -> None:
    for name in ("a1", "a2", "a3", "b1", "c1"):
        await decoders.request(name)
    assert decoders.running == ["a1", "b1"]
    await decoders.end("b1")
    assert decoders.running == ["a1", "c1"]
    await decoders.end("a1")
    assert decoders.running == ["c1", "a2"]


async def test_the_owner_that_waited_longest_is_next(decoders: Decoders) -> None:
    for name in ("a1", "b1", "a2", "c1", "a3", "b2", "c2"):
        await decoders.request(name)
    order = []
    while decoders.running:
        order.append(name := decoders.running[0])
        await decoders.end(name)
    assert order == ["a1", "b1", "c1", "a2", "b2", "c2", "a3"]


async def test_large_images_are_decoded_one_at_a_time_and_small_ones_overtake_them(decoders: Decoders) -> None:
    await decoders.request("a1", large=True)
    await decoders.request("b1", large=True)
    await decoders.request("c1")
    assert decoders.running == ["a1", "c1"]
    await decoders.end("c1")
    assert decoders.running == ["a1"]
    await decoders.end("a1")
    assert decoders.running == ["b1"]


async def test_a_waiter_that_is_cancelled_gives_its_turn_to_the_next(decoders: Decoders) -> None:
    for name in ("a1", "b1", "c1", "d1"):
        await decoders.request(name)
    decoders.tasks["c1"].cancel()
    decoders.tasks["a1"].cancel()
    await eventually(lambda: "d1" in decoders.running)
    decoders._ends["b1"].set()
    await decoders.tasks["b1"]
    assert not decoders.tasks["d1"].done()


async def test_an_owner_may_have_several_turns_but_not_all_of_those_that_others_wait_for() -> None:
    made = Decoders(per_owner=2)
    async with cancelled_at_the_end(made):
        for name in ("a1", "a2", "a3", "b1"):
            await made.request(name)
        assert made.running == ["a1", "a2"]
        await made.end("a1")
        assert made.running == ["a2", "b1"]
