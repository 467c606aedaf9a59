"""Which run has the device next: the rule, and with real threads."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.checkpoints.work.estimate import WeightsKey
from pipelines.images.scheduling.fairness import RecentUse
from pipelines.images.scheduling.row_limits import PassShape
from pipelines.images.scheduling.scheduler import (
    DeviceScheduler,
    DeviceTurn,
    ForwardRequest,
    Preempted,
    Synchronous,
    select_next,
)
from pipelines.protocol.images import Runtime


def test_the_least_work_left_goes_first() -> None:
    short, long = DeviceTurn(1.0), DeviceTurn(30.0)
    assert select_next([long, short], {}) is short


def test_a_run_far_behind_its_share_goes_before_a_shorter_one() -> None:
    short, long = DeviceTurn(1.0), DeviceTurn(30.0, owed_s=15.1)
    assert select_next([short, long], {}) is long
    long.device_s = 8.0
    assert select_next([short, long], {}) is short


def test_while_one_is_overdue_the_earliest_deadline_goes_first_and_of_equal_ones_the_one_that_has_begun() -> None:
    overdue, begun, waits = DeviceTurn(90.0, owed_s=50.0), DeviceTurn(20.0, owed_s=16.0, device_s=10.0), DeviceTurn(1.0)
    assert select_next([overdue, waits, begun], {}) is begun
    other = DeviceTurn(30.0, owed_s=16.0)
    assert select_next([other, overdue, begun], {}) is begun
    waits.owed_s = 0.6
    assert select_next([overdue, waits, begun], {}) is waits


def test_a_run_that_ends_at_once_goes_first() -> None:
    scheduler = DeviceScheduler()
    cancelled, overdue, priority = DeviceTurn(30.0), DeviceTurn(20.0, owed_s=90.0), DeviceTurn(1.0, tier="priority")
    scheduler.run_next(cancelled)
    assert select_next([priority, overdue, cancelled], {}) is cancelled


def test_a_short_run_passes_a_long_one_between_two_of_its_turns() -> None:
    scheduler = DeviceScheduler(clock=lambda: 0.0)  # nobody is owed anything
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


def test_one_run_at_a_time_waits_within_a_pass() -> None:
    """What it has computed stays in memory. The second one goes on, though a shorter run waits."""
    scheduler = DeviceScheduler(clock=lambda: 0.0)
    order: list[str] = []
    long, medium, short = DeviceTurn(10.0), DeviceTurn(5.0), DeviceTurn(1.0)

    def run(name: str, turn: DeviceTurn, shorter: threading.Thread | None, waits: DeviceTurn | None) -> None:
        with scheduler.acquire(turn):
            order.append(name)
            if shorter is not None:
                shorter.start()
                while waits not in scheduler._waiting:
                    time.sleep(0.001)
            scheduler.yield_within_pass()
            order.append(f"{name} goes on")

    third = threading.Thread(target=run, args=("short", short, None, None))
    second = threading.Thread(target=run, args=("medium", medium, third, short))
    run("long", long, second, medium)
    for thread in (second, third):
        thread.join()
    assert order == ["long", "medium", "medium goes on", "short", "short goes on", "long goes on"]


def test_who_keeps_the_device_keeps_its_threads() -> None:
    released = []
    scheduler = DeviceScheduler(on_release=lambda: released.append(scheduler.current))
    own, other = DeviceTurn(1.0), DeviceTurn(9.0)

    def wait() -> None:
        with scheduler.acquire(other):
            pass

    waiting = threading.Thread(target=wait)
    with scheduler.acquire(own):
        waiting.start()
        while not scheduler._waiting:
            time.sleep(0.001)
        scheduler.yield_point()
        assert not released
        own.remaining_s = 20.0
        scheduler.yield_point()
        assert released == [own, None], "it gave the device to the other, which ended"
    waiting.join()


def test_a_draft_passes_the_large_image_of_another_key_even_after_some_use() -> None:
    large, draft = DeviceTurn(60.0, "large"), DeviceTurn(1.0, "drafts")
    use = RecentUse()
    use.add("drafts", 20.0, 100.0)
    assert select_next([large, draft], {"drafts": use.of("drafts", 100.0)}) is draft
    use.add("drafts", 50.0, 100.0)
    assert select_next([large, draft], {"drafts": use.of("drafts", 100.0)}) is large
    assert use.of("drafts", 400.0) < 1, "it is forgotten"


def test_a_newcomer_encodes_its_prompt_before_the_pass_that_it_can_join() -> None:
    shape = PassShape(WeightsKey(Path("x"), None, None, Runtime(), ""), 64, 64)
    runs = DeviceTurn(1.0, since=100.0, shape=shape, request=ForwardRequest({}, key="same", room=2))
    joins = DeviceTurn(9.0, since=100.0, shape=shape)
    other = DeviceTurn(9.0, since=100.0, shape=replace(shape, width_px=128))
    assert select_next([runs, other, joins], {}) is joins
    assert select_next([runs, other], {}) is runs
    assert runs.request
    runs.request.room = 1
    assert select_next([runs, joins], {}) is runs, "there is no room for it"


def test_those_whose_pass_was_computed_go_on_before_the_next_one() -> None:
    served = DeviceTurn(9.0, since=100.0, request=ForwardRequest({}, done=True))
    waits = DeviceTurn(1.0, since=0.0, request=ForwardRequest({}))
    assert select_next([waits, served], {}) is served


def test_a_run_that_has_not_begun_can_be_preempted_and_one_that_has_can_not() -> None:
    scheduler = DeviceScheduler()
    began, go_on, preempted = threading.Event(), threading.Event(), threading.Event()
    first, second = DeviceTurn(1.0), DeviceTurn(9.0)

    def hold() -> None:
        with scheduler.acquire(first):
            began.set()
            assert go_on.wait(30)
            scheduler.yield_point()

    def give_up() -> None:
        try:
            with scheduler.acquire(second):
                pass
        except Preempted:
            preempted.set()

    threads = [threading.Thread(target=hold), threading.Thread(target=give_up)]
    threads[0].start()
    assert began.wait(30)
    threads[1].start()
    while not scheduler._waiting:
        time.sleep(0.001)
    scheduler.preempt(first)
    scheduler.preempt(second)
    assert preempted.wait(30)
    go_on.set()
    for thread in threads:
        thread.join()
    assert not first.preempted


class LateDevice(Synchronous):
    """A clock, and a device that computes for `late_s` after a turn what was launched in it."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now = 0.0
        self.late_s = late_s

    def mark(self) -> Callable[[], None]:
        return lambda: self.work(self.late_s)

    def work(self, seconds: float) -> None:
        self.now += seconds

    def scheduler(self) -> DeviceScheduler:
        return DeviceScheduler(clock=lambda: self.now, timeline=self)


def test_what_the_device_computes_after_a_turn_is_that_runs_time() -> None:
    device = LateDevice(5.0)
    scheduler, turn = device.scheduler(), DeviceTurn(1.0, "key")
    with scheduler.acquire(turn):
        device.work(1.0)
        with scheduler.release():
            assert turn.device_s == 6.0
            device.work(20.0)  # of the host alone
        device.work(2.0)
        scheduler.mark_launched()
    device.work(0.5)  # the run is on its way to the wait
    scheduler.await_launched(turn)
    assert turn.device_s == 1.0 + 5.0 + 2.0 + 0.5 + 5.0
    assert scheduler._use.of("key", device.now) > 0.7 * turn.device_s


def test_it_is_counted_once_beside_a_run_that_has_the_device_meanwhile() -> None:
    device = LateDevice()
    scheduler, turn, other = device.scheduler(), DeviceTurn(1.0), DeviceTurn(1.0)
    with scheduler.acquire(turn):
        device.work(1.0)

    def wait() -> None:
        device.work(2.0)
        with scheduler.acquire(other):
            device.work(3.0)
        device.work(4.0)

    turn.launched = wait
    scheduler.await_launched(turn)
    assert (turn.device_s, other.device_s) == (7.0, 3.0)


def test_two_that_wait_for_it_share_the_time() -> None:
    device = LateDevice(4.0)
    scheduler, first, second = device.scheduler(), DeviceTurn(1.0), DeviceTurn(1.0)
    for turn in (first, second):
        with scheduler.acquire(turn):
            scheduler.mark_launched()
    first.launched = lambda: scheduler.await_launched(second)  # as on a thread of its own
    scheduler.await_launched(first)
    assert (first.device_s, second.device_s) == (2.0, 2.0)


def test_a_wait_that_fails_is_over() -> None:
    device = LateDevice()
    scheduler, turn = device.scheduler(), DeviceTurn(1.0)
    with scheduler.acquire(turn):
        pass

    def fail() -> None:
        raise RuntimeError

    turn.launched = fail
    with pytest.raises(RuntimeError):
        scheduler.await_launched(turn)
    assert not scheduler._arriving
