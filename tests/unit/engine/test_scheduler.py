"""Who goes next: by rule, and with real threads."""

import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.images.scheduler import PATIENCE, Turn, Turns, choose


def turn(remaining_s: float, *, waited_s: float = 0.0, turn_s: float = 1.0) -> Turn:
    return Turn(remaining_s, turn_s=turn_s, since=100.0 - waited_s)


def test_the_least_work_left_goes_first() -> None:
    short, long = turn(1.0), turn(30.0)
    assert choose([long, short], 100.0, overdue_next=True) is short


def test_a_run_that_waited_beyond_its_patience_goes_before_a_shorter_one() -> None:
    short, long = turn(1.0), turn(30.0, waited_s=PATIENCE + 0.1)
    assert choose([short, long], 100.0, overdue_next=True) is long
    assert choose([short, long], 100.0, overdue_next=False) is short


@given(st.lists(st.floats(0.01, 1000), min_size=2, max_size=8), st.integers(0, 7))
def test_nobody_starves_however_much_is_asked(remaining: list[float], slow: int) -> None:
    """New short runs arrive for ever; still every old one gets its turn again and again."""
    now, overdue_next = 0.0, True
    runs = [Turn(seconds, turn_s=1.0, since=0.0) for seconds in remaining]
    had: Counter[int] = Counter()
    for _ in range(60 * len(runs)):
        newcomer = Turn(0.001, turn_s=1.0, since=now)
        chosen = choose([*runs, newcomer], now, overdue_next=overdue_next)
        overdue_next = not (overdue_next and chosen.overdue(now) > 0)
        now += 1.0
        if chosen in runs:
            had[runs.index(chosen)] += 1
            chosen.since = now
    assert min(had[i] for i in range(len(runs))) >= 2


def test_threads_take_turns_and_a_short_run_passes_a_long_one() -> None:
    turns = Turns()
    order: list[str] = []
    long_began = threading.Event()

    def run(name: str, steps: int, remaining_s: float) -> None:
        mine = Turn(remaining_s)
        with turns.hold(mine):
            for _ in range(steps):
                order.append(name)
                long_began.set()
                time.sleep(0.005)
                turns.boundary()

    long = threading.Thread(target=run, args=("long", 60, 10.0))
    long.start()
    long_began.wait()
    short = threading.Thread(target=run, args=("short", 5, 0.1))
    short.start()
    short.join()
    before = len(order)
    long.join()
    assert before < 30
    assert order.count("long") == 60
    assert order[-1] == "long"


def test_only_one_run_has_the_device() -> None:
    turns, inside, most = Turns(), 0, 0

    def run() -> None:
        nonlocal inside, most
        with turns.hold(Turn(1.0)):
            for _ in range(50):
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                inside -= 1
                turns.boundary()

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_run_that_raises_gives_the_device_back() -> None:
    turns = Turns()
    for _ in range(2):
        with pytest.raises(RuntimeError), turns.hold(Turn(1.0)):
            raise RuntimeError


def test_a_thread_that_holds_nothing_passes_a_boundary() -> None:
    Turns().boundary()
