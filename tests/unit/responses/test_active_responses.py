"""Responses that run: who listens, who comes back, and what is told from where on."""

import asyncio

from server.accounts.responses import StoredResponse
from server.state.active_responses import LiveResponse, LiveResponses, same_response


def live(number: int = 1, patience_s: float = 0.0, key: str | None = None) -> LiveResponse:
    record = StoredResponse(
        f"resp_{number}", "key_1", None, "in_progress", False, {}, 1_760_000_000, idempotency_key=key, fingerprint="f"
    )
    return LiveResponse(record, recorded=False, patience_s=patience_s)


async def for_ever() -> None:
    await asyncio.sleep(60)


async def test_events_are_told_once_from_any_number_on() -> None:
    response = live()
    for _ in range(3):
        response.tell("response.in_progress")
    response.end("completed", {})
    for after, numbers in ((-1, [0, 1, 2, 3]), (1, [2, 3]), (-(10**12), [0, 1, 2, 3]), (99, [])):
        assert [event["sequence_number"] async for event in response.follow(after)] == numbers


async def test_a_response_without_listeners_ends_unless_somebody_may_come_back() -> None:
    hasty, patient, keyed = live(), live(patience_s=60), live(key="k")
    tasks = [response.begin(for_ever()) for response in (hasty, patient, keyed)]
    for response in (hasty, patient, keyed):
        with response.listening():
            assert response.heard
    await asyncio.sleep(0)
    assert [task.cancelling() for task in tasks] == [1, 0, 0]
    short = live(patience_s=0.01)
    task = short.begin(for_ever())
    with short.listening():
        pass
    with short.listening():
        await asyncio.sleep(0.05)
    assert not task.cancelling()
    for rest in (*tasks, task):
        rest.cancel()
    await asyncio.gather(*tasks, task, return_exceptions=True)


async def test_a_retry_joins_the_one_that_nobody_listens_to_else_the_newest() -> None:
    running = LiveResponses()
    one, two, three = (live(number, patience_s=60) for number in range(3))
    keyed = live(9, key="k")
    for response in (one, two, three, keyed):
        running.start(response, for_ever())
    same = same_response("key_1", "f")
    with one.listening(), three.listening():
        assert running.find_alike(same) is two
        with two.listening():
            assert running.find_alike(same) is three
            three.cancel()
            assert running.find_alike(same) is two
    assert running.find_alike(same_response("key_2", "f")) is None
    for response in (one, two, keyed):
        response.cancel()
    await asyncio.sleep(0)
