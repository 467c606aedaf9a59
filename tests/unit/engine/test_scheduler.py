"""Which run has the device next: the rule, and with real threads."""

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.catalog.weights import WeightsKey
from pipelines.images.fairness import RecentUse
from pipelines.images.row_limits import PassShape
from pipelines.images.scheduler import OVERDUE_AFTER_TURNS, DeviceScheduler, DeviceTurn, ForwardRequest, select_next
from pipelines.protocol.images import Runtime


def turn(remaining_s: float, *, waited_s: float = 0.0, turn_s: float = 1.0) -> DeviceTurn:
    return DeviceTurn(remaining_s, turn_s=turn_s, since=100.0 - waited_s)


def test_the_least_work_left_goes_first() -> None:
    short, long = turn(1.0), turn(30.0)
    assert select_next([long, short], RecentUse(), 100.0, allow_overdue=True) is short


def test_an_overdue_run_goes_before_a_shorter_one() -> None:
    short, long = turn(1.0), turn(30.0, waited_s=OVERDUE_AFTER_TURNS + 0.1)
    assert select_next([short, long], RecentUse(), 100.0, allow_overdue=True) is long
    assert select_next([short, long], RecentUse(), 100.0, allow_overdue=False) is short


@given(st.lists(st.floats(0.01, 1000), min_size=2, max_size=8))
def test_no_run_starves_under_any_load(remaining: list[float]) -> None:
    """New short runs arrive for ever; still every old one gets its turn again and again."""
    now, allow_overdue = 0.0, True
    runs = [DeviceTurn(seconds, turn_s=1.0, since=0.0) for seconds in remaining]
    turns: Counter[int] = Counter()
    for _ in range(60 * len(runs)):
        newcomer = DeviceTurn(0.001, turn_s=1.0, since=now)
        selected = select_next([*runs, newcomer], RecentUse(), now, allow_overdue=allow_overdue)
        allow_overdue = not (allow_overdue and selected.overdue(now) > 0)
        now += 1.0
        if selected in runs:
            turns[runs.index(selected)] += 1
            selected.since = now
    assert min(turns[i] for i in range(len(runs))) >= 2


def test_a_short_run_passes_a_long_one_between_two_of_its_turns() -> None:
    scheduler = DeviceScheduler(clock=lambda: 0.0)  # no run becomes overdue
    order: list[str] = []
    long_began = threading.Event()

    def run(name: str, steps: int, remaining_s: float, before_first_yield: threading.Event) -> None:
        with scheduler.acquire(DeviceTurn(remaining_s)):
            for _ in range(steps):
                order.append(name)
                long_began.set()
                assert before_first_yield.wait(30)
                scheduler.yield_point()

    short_waits, at_once = threading.Event(), threading.Event()
    at_once.set()
    threads = [threading.Thread(target=run, args=("long", 6, 10.0, short_waits))]
    threads[0].start()
    assert long_began.wait(30)
    threads.append(threading.Thread(target=run, args=("short", 3, 0.1, at_once)))
    threads[1].start()
    while not scheduler._waiting:
        time.sleep(0.001)
    short_waits.set()
    for thread in threads:
        thread.join()
    assert order == ["long", *["short"] * 3, *["long"] * 5]


def test_only_one_run_has_the_device() -> None:
    scheduler, inside, max_inside = DeviceScheduler(), 0, 0

    def run() -> None:
        nonlocal inside, max_inside
        with scheduler.acquire(DeviceTurn(1.0)):
            for _ in range(50):
                inside += 1
                max_inside = max(max_inside, inside)
                time.sleep(0)
                inside -= 1
                scheduler.yield_point()

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max_inside == 1


def test_a_run_that_raises_releases_the_device() -> None:
    scheduler = DeviceScheduler()
    for _ in range(2):
        with pytest.raises(RuntimeError), scheduler.acquire(DeviceTurn(1.0)):
            raise RuntimeError


def test_a_thread_that_holds_nothing_passes_a_yield_point() -> None:
    DeviceScheduler().yield_point()


def test_keys_with_as_much_to_do_get_as_much_of_the_device() -> None:
    """One key has 32 runs, the other one: the device goes round by key, so the one gets over a third until it ends."""
    use, now = RecentUse(), 0.0
    runs = [DeviceTurn(4.0, "many", since=0.0) for _ in range(32)] + [DeviceTurn(4.0, "one", since=0.0)]
    allow_overdue, turns = True, []
    while runs[-1].remaining_s > 0:
        waiting = [run for run in runs if run.remaining_s > 0]
        selected = select_next(waiting, use, now, allow_overdue=allow_overdue)
        allow_overdue = not (allow_overdue and selected.overdue(now) > 0)
        now += 0.25
        selected.remaining_s -= 0.25
        selected.since = now
        use.add(selected.owner, 0.25, now)
        turns.append(selected.owner)
    assert turns.count("one") / len(turns) > 1 / 3


def test_a_draft_passes_the_large_picture_of_another_key_even_after_some_use() -> None:
    use = RecentUse()
    use.add("drafts", 20.0, 100.0)
    large, draft = DeviceTurn(60.0, "large", since=100.0), DeviceTurn(1.0, "drafts", since=100.0)
    assert select_next([large, draft], use, 100.0, allow_overdue=True) is draft
    use.add("drafts", 50.0, 100.0)
    assert select_next([large, draft], use, 100.0, allow_overdue=True) is large
    assert use.of("drafts", 400.0) < 1, "it is forgotten"


def test_a_newcomer_encodes_its_prompt_before_the_pass_that_it_can_join() -> None:
    shape = PassShape(WeightsKey(Path("x"), None, None, Runtime(), 0), 64, 64)
    runs = DeviceTurn(1.0, since=100.0, shape=shape, request=ForwardRequest({}, key="same"))
    joins = DeviceTurn(9.0, since=100.0, shape=shape)
    other = DeviceTurn(9.0, since=100.0, shape=replace(shape, width_px=128))
    assert select_next([runs, other, joins], RecentUse(), 100.0, allow_overdue=True) is joins
    assert select_next([runs, other], RecentUse(), 100.0, allow_overdue=True) is runs


def test_those_whose_pass_was_computed_go_on_before_the_next_one() -> None:
    served = DeviceTurn(9.0, since=100.0, request=ForwardRequest({}, done=True))
    waits = DeviceTurn(1.0, since=0.0, request=ForwardRequest({}))
    assert select_next([waits, served], RecentUse(), 100.0, allow_overdue=True) is served
