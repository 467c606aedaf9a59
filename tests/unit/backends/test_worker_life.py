"""Every event in every state of a worker's life: where it leads, or that it is refused."""

from typing import Any

import pytest

from pipelines.protocol.messages import Ready
from server.backends.worker_life import (
    AsleepOnDisk,
    AsleepOnHost,
    Coming,
    Event,
    Lost,
    Starting,
    State,
    Stopped,
    Up,
    Worker,
    WrongMove,
    after,
    restart_pause_s,
    status_of,
)
from tests.support.scripted_worker import ScriptedWorker

WORKER = Worker(ScriptedWorker(), began=0.0)
READY, LOST = Ready("a GPU", is_gpu=True), Lost("SIGKILL")
ON_DISK = AsleepOnDisk(WORKER, "a GPU")
STATES: list[State] = [
    Stopped(), Coming(), Coming("SIGBUS"), Coming(wakes=True), Starting(WORKER, "SIGBUS", False),
    Starting(WORKER, None, True), Up(WORKER, "a GPU", False), Up(WORKER, "a GPU", True),
    AsleepOnHost(WORKER, "a GPU"), ON_DISK,
]  # fmt: skip
EVENTS: list[Event] = ["start", WORKER, READY, "loaded", "sleep on host", "sleep on disk", "wake", LOST, "stop"]
MOVES: list[tuple[State, Event, State]] = [
    (Stopped(), "start", Coming()),
    (Coming(), WORKER, Starting(WORKER, None, False)),
    (Coming("SIGBUS"), WORKER, Starting(WORKER, "SIGBUS", False)),
    (Coming(wakes=True), WORKER, Starting(WORKER, None, True)),
    (Coming(), LOST, Coming("SIGKILL")),
    (Coming("SIGBUS"), LOST, Coming("SIGKILL")),
    (Coming(wakes=True), LOST, Coming("SIGKILL")),  # what it was to load is lost: the next one loads all
    (Starting(WORKER, "SIGBUS", False), READY, Up(WORKER, "a GPU", False)),
    (Starting(WORKER, None, True), READY, Up(WORKER, "a GPU", True)),
    (Starting(WORKER, "SIGBUS", False), LOST, Coming("SIGKILL")),
    (Starting(WORKER, None, True), LOST, Coming("SIGKILL")),
    (Up(WORKER, "a GPU", True), "loaded", Up(WORKER, "a GPU", False)),
    (Up(WORKER, "a GPU", False), "loaded", Up(WORKER, "a GPU", False)),
    *((Up(WORKER, "a GPU", wakes), "sleep on host", AsleepOnHost(WORKER, "a GPU")) for wakes in (False, True)),
    *((Up(WORKER, "a GPU", wakes), "sleep on disk", ON_DISK) for wakes in (False, True)),
    *((Up(WORKER, "a GPU", wakes), LOST, Coming("SIGKILL")) for wakes in (False, True)),
    (AsleepOnHost(WORKER, "a GPU"), "sleep on disk", ON_DISK),
    (AsleepOnHost(WORKER, "a GPU"), "wake", Up(WORKER, "a GPU", True)),
    (AsleepOnHost(WORKER, "a GPU"), LOST, ON_DISK),
    (ON_DISK, "wake", Coming(wakes=True)),
    (ON_DISK, LOST, ON_DISK),
    *((state, "stop", Stopped()) for state in STATES),
]


def name(part: object) -> str | None:
    return None if isinstance(part, tuple) else part if isinstance(part, str) else type(part).__name__


@pytest.mark.parametrize("state", STATES, ids=name)
@pytest.mark.parametrize("event", EVENTS, ids=name)
def test_each_event_leads_where_the_table_says_or_is_refused(state: State, event: Event) -> None:
    found = [to for known, what, to in MOVES if (known, what) == (state, event)]
    if not found:
        with pytest.raises(WrongMove, match=type(state).__name__):
            after(state, event)
        return
    assert [after(state, event)] == found


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (Stopped(), ("awake", False, None, None, None)),
        (Coming("SIGBUS"), ("awake", False, None, None, "SIGBUS")),
        (Coming(wakes=True), ("waking", True, None, None, None)),
        (Starting(WORKER, "SIGBUS", False), ("awake", False, None, None, "SIGBUS")),
        (Starting(WORKER, None, True), ("waking", True, None, None, None)),
        (Up(WORKER, "a GPU", False), ("awake", True, None, "a GPU", None)),
        (Up(WORKER, "a GPU", True), ("waking", True, None, "a GPU", None)),
        (AsleepOnHost(WORKER, "a GPU"), ("asleep", True, "host", "a GPU", None)),
        (ON_DISK, ("asleep", True, "disk", "a GPU", None)),
    ],
    ids=name,
)
def test_operators_see_in_each_state(state: State, told: tuple[Any, ...]) -> None:
    status = status_of(state)
    assert (status.sleep, status.takes_jobs, status.place, status.device, status.problem) == told


def test_the_pause_doubles_while_workers_die_young_and_is_none_after_one_that_lived() -> None:
    pauses = [0.0]
    for _ in range(7):
        pauses.append(restart_pause_s(pauses[-1], uptime_s=1.0))
    assert pauses == [0.0, 0.25, 0.75, 1.75, 3.75, 7.75, 10.0, 10.0]
    assert restart_pause_s(10.0, uptime_s=31.0) == 0.0
