"""Responses that run: their phases, who may join them, and their events from any number on."""

import asyncio
from itertools import product

import pytest

from server.accounts.responses import StoredResponse
from server.state.active_responses import MOVES, ActiveResponse, ActiveResponses, IllegalTransition, Phase

IDENTITY = ("key_1", "responses", "f")


def new_response(
    number: int = 1, grace_s: float = 0.0, key: str | None = None, *, background: bool = False, stored: bool = True
) -> ActiveResponse:
    record = StoredResponse(
        id=f"resp_{number}",
        key_id="key_1",
        previous_id=None,
        state="queued" if background else "in_progress",
        background=background,
        echo={},
        created_at=1_760_000_000,
        idempotency_key=key,
        fingerprint="f",
        stored=stored,
    )
    return ActiveResponse(record, recorded=False, grace_s=grace_s)


async def run_for_ever() -> None:
    await asyncio.sleep(60)


async def test_events_are_followed_once_from_any_number_on() -> None:
    response = new_response()
    for _ in range(3):
        response.emit_snapshot("response.in_progress")
    response.end("completed", {})
    for after, numbers in ((-1, [0, 1, 2, 3]), (1, [2, 3]), (-(10**12), [0, 1, 2, 3]), (99, [])):
        assert [event["sequence_number"] async for event in response.follow(after)] == numbers


async def test_a_response_without_listeners_is_cancelled_unless_a_client_may_come_back() -> None:
    impatient, patient, keyed = new_response(), new_response(grace_s=60), new_response(key="k")
    tasks = [response.begin(run_for_ever()) for response in (impatient, patient, keyed)]
    for response in (impatient, patient, keyed):
        with response.listening():
            assert response.has_listeners
    await asyncio.sleep(0)
    assert [task.cancelling() for task in tasks] == [1, 0, 0]
    short = new_response(grace_s=0.01)
    task = short.begin(run_for_ever())
    with short.listening():
        pass
    with short.listening():
        await asyncio.sleep(0.05)
    assert not task.cancelling()
    for rest in (*tasks, task):
        rest.cancel()
    await asyncio.gather(*tasks, task, return_exceptions=True)


async def test_equal_responses_are_found_unless_their_clients_have_an_idempotency_key() -> None:
    running = ActiveResponses()
    one, two, three = (new_response(number, grace_s=60) for number in range(3))
    keyed, background = new_response(9, key="k"), new_response(8, background=True)
    for response in (one, two, three, keyed, background):
        running.start(response, run_for_ever())
    with background.listening():
        await background.confirm_arrival()  # its client knows its id
    with one.listening(), three.listening():
        three.cancel()
        assert running.find_equal(IDENTITY) == [one, two, background]
    assert [response.has_lost_client for response in (one, two, background)] == [True, False, False]
    assert running.find_equal(("key_2", "responses", "f")) == []
    assert running.find_keyed("key_1", "responses", "k") is keyed
    for response in (one, two, keyed, background):
        response.cancel()
    await asyncio.sleep(0)


async def test_only_a_stored_response_can_be_asked_for() -> None:
    running = ActiveResponses()
    for number, stored in ((1, True), (2, False)):
        running.start(new_response(number, 60, stored=stored), run_for_ever())
    assert running.find_stored("resp_1", "key_1") is not None
    assert running.find_stored("resp_1", "key_2") is None
    assert running.find_stored("resp_2", "key_1") is None
    async with asyncio.timeout(60):
        await running.stop()  # before their first step: they end all the same
    assert len(running) == 0


MOVERS = {
    Phase.STARTING: lambda response: response.start(),
    Phase.ADMITTED: lambda response: response.admit(),
    Phase.CHARGED: lambda response: response.mark_charged(0, {"id": "ig_1"}),
    Phase.ENDED: lambda response: response.end("completed", {}),
}


@pytest.mark.parametrize(("before", "after"), list(product(Phase, MOVERS)))
async def test_a_phase_follows_only_where_the_table_allows_it(before: Phase, after: Phase) -> None:
    response = new_response()
    response.phase = before
    response.output.append({"id": "ig_1", "status": "in_progress"})
    if after in MOVES[before]:
        MOVERS[after](response)
        assert response.phase is after
    else:
        with pytest.raises(IllegalTransition, match=f"{before.value} -> {after.value}"):
            MOVERS[after](response)
        assert response.phase is before


async def test_the_phase_says_what_clients_may_expect() -> None:
    response = new_response(background=True)
    assert (response.status, response.admitted, response.charged, response.done) == ("queued", False, False, False)
    response.start()
    assert response.status == "in_progress"
    response.admit()
    assert response.admitted
    response.output.append({"id": "ig_1"})
    response.mark_charged(0, {"id": "ig_1", "status": "completed"})
    response.mark_charged(0, {"id": "ig_1", "status": "completed"})
    assert (response.admitted, response.charged) == (True, True)
    response.end("incomplete", {"usage": None})
    assert (response.status, response.done) == ("incomplete", True)


async def test_a_replayed_response_has_ended() -> None:
    record = StoredResponse("resp_1", "key_1", None, "completed", False, {}, 1, ended={"completed_at": 2})
    replayed = ActiveResponse.replay(record, [{"id": "msg_1"}], [{"sequence_number": 0}])
    assert (replayed.done, replayed.replayed, replayed.status) == (True, True, "completed")
    assert replayed.object()["completed_at"] == 2
    assert [event async for event in replayed.follow()] == [{"sequence_number": 0}]
