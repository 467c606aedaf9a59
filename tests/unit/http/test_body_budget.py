"""Who may send a body, and how much, while others do."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from server.errors import Overloaded, RateLimited
from server.state.body_budget import FREE_BYTES, STEP_BYTES, BodyBudget, BodyLease

MIB = 1024**2


def budget(total: int = 10, per_key: int = 4) -> BodyBudget:
    return BodyBudget(total * MIB, per_key * MIB, patience_s=0.2)


async def lease(bodies: BodyBudget, key: str, size: int) -> BodyLease:
    made = BodyLease(bodies, size + FREE_BYTES)
    await made.begin(key)
    return made


async def test_a_key_has_its_part_and_all_keys_have_the_whole() -> None:
    bodies = budget()
    mine = [await lease(bodies, "mine", 2 * MIB) for _ in range(2)]
    with pytest.raises(RateLimited) as refused:
        await lease(bodies, "mine", 1)
    assert refused.value.headers["Retry-After"] == "5"
    theirs = [await lease(bodies, key, 3 * MIB) for key in ("a", "b")]
    with pytest.raises(Overloaded) as full:
        await lease(bodies, "c", 1)
    assert full.value.headers["Retry-After"] == "5"
    await lease(bodies, "c", 0)  # small bodies always have room
    for held in (*mine, *theirs):
        held.release()
    assert bodies.in_flight_bytes == 0


async def test_a_body_that_waits_gets_the_room_that_another_leaves() -> None:
    bodies = BodyBudget(MIB, MIB, patience_s=60)
    first = await lease(bodies, "key", MIB)
    second = asyncio.create_task(lease(bodies, "key", MIB))
    for _ in range(3):
        await asyncio.sleep(0)  # it begins, and waits
    assert not second.done()
    first.release()
    (await second).release()
    assert bodies.in_flight_bytes == 0


async def test_a_body_above_a_budget_is_let_in_alone() -> None:
    bodies = budget(total=10, per_key=4)
    large = await lease(bodies, "key", 20 * MIB)
    with pytest.raises(RateLimited):
        await lease(bodies, "key", 1)
    with pytest.raises(Overloaded):
        await lease(bodies, "other", 1)
    large.release()
    await lease(bodies, "other", 1)


async def test_a_body_without_a_length_reserves_as_it_grows() -> None:
    bodies = budget()
    growing = BodyLease(bodies, 0)
    await growing.begin("key")
    for received, reserved in ((FREE_BYTES, 0), (FREE_BYTES + 1, STEP_BYTES), (2 * MIB, 2 * STEP_BYTES)):
        await growing.extend(received)
        assert bodies.in_flight_bytes == reserved
    with pytest.raises(RateLimited):
        await growing.extend(5 * MIB)
    growing.release()
    assert bodies.in_flight_bytes == 0


async def test_a_lease_ends_with_its_last_holder() -> None:
    bodies = budget()
    held = await lease(bodies, "key", MIB)
    release = held.share()
    held.release()
    assert bodies.in_flight_bytes == MIB
    release()
    assert bodies.in_flight_bytes == 0


async def test_a_key_sends_so_many_bodies_at_once_and_as_many_wait() -> None:
    bodies = BodyBudget(MIB, MIB, patience_s=60)

    async def send() -> None:
        async with bodies.place("key", 2):
            await asyncio.sleep(0)

    async with AsyncExitStack() as sending:
        for _ in range(2):
            await sending.enter_async_context(bodies.place("key", 2))
        waiting = [asyncio.create_task(send()) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(RateLimited, match="sending 2 requests"):
            await send()
        async with bodies.place("other", 2):
            pass
    await asyncio.gather(*waiting)
    await send()


async def test_patience_ends() -> None:
    bodies = BodyBudget(MIB, MIB, patience_s=0.05)
    async with bodies.place("key", 1):
        with pytest.raises(RateLimited):
            async with bodies.place("key", 1):
                pass
    async with bodies.place("key", 1):
        pass
