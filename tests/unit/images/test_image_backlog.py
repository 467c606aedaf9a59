"""How much work waits, and what is said to who has to wait."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.protocol.images import CheckpointSpec, Encoding, ImageJob, Progress
from server.accounts.calls import CallId
from server.errors import Overloaded
from server.flows.rate_limits import duration
from server.state.active_calls import RunningCall, Ticket
from server.state.image_backlog import Backlog

SPEC = CheckpointSpec("c", Path("c"), None, "alpha", "img2img", 1, max_area_px=4_000_000)
JOB = ImageJob(
    id="job", checkpoint=SPEC, prompt="a boat", negative_prompt="", width_px=1024, height_px=1024, n=1, steps=100,
    guidance=1, strength=1, seed=1, references=(), mask=None, encoding=Encoding(), metadata={}, time_limit_s=9,
)  # fmt: skip
UNIT_S = 1e6 / 1024**2  # so that a step of the job takes a second


def running(name: str, key: str = "key") -> RunningCall:
    return RunningCall(Ticket(CallId(name, key, "images.generations", "print", None), 0))


def named(name: str, n: int = 1) -> ImageJob:
    return replace(JOB, id=name, n=n)


async def test_work_is_bounded_by_its_time_and_the_wait_is_until_it_fits() -> None:
    backlog = Backlog(most_jobs=9, most_s=250, warmed=lambda _: UNIT_S)  # a job takes 100 s
    first = running("a")
    with backlog.place(named("a"), first), backlog.place(named("b"), running("b")):
        assert backlog.left_s() == pytest.approx(200)
        with pytest.raises(Overloaded) as refused, backlog.place(named("c"), running("c")):
            pass
        assert refused.value.headers["Retry-After"] == "50"
        first.report(Progress(30, 100))
        with pytest.raises(Overloaded) as refused, backlog.place(named("c"), running("c")):
            pass
        assert refused.value.headers["Retry-After"] == "20"
        first.report(Progress(50, 100))
        with backlog.place(named("c"), running("c")):
            assert backlog.left_s() == pytest.approx(250)
    assert backlog.left_s() == 0


async def test_an_idle_server_takes_any_job_and_then_says_when_it_will_be_idle_again() -> None:
    backlog = Backlog(most_jobs=9, most_s=10, warmed=lambda _: UNIT_S)
    with backlog.place(named("a"), running("a")):
        with pytest.raises(Overloaded) as refused, backlog.place(named("b"), running("b")):
            pass
        assert refused.value.headers["Retry-After"] == "100"


async def test_the_number_of_jobs_is_bounded_too_and_the_shortest_ends_first() -> None:
    backlog = Backlog(most_jobs=2, most_s=1e9, warmed=lambda _: UNIT_S / 5)
    with backlog.place(named("a", n=4), running("a")), backlog.place(named("b"), running("b")):
        with pytest.raises(Overloaded) as refused, backlog.place(named("c"), running("c")):
            pass
        assert refused.value.headers["Retry-After"] == "20"


async def test_a_full_server_is_full_until_a_job_has_ended() -> None:
    backlog, last = Backlog(most_jobs=1, most_s=1e9, warmed=lambda _: UNIT_S), running("a")
    with backlog.place(named("a"), last):
        last.report(Progress(100, 100))
        with pytest.raises(Overloaded), backlog.place(named("b"), running("b")):
            pass


async def test_measured_speeds_replace_the_warm_ones() -> None:
    backlog = Backlog(most_jobs=9, most_s=1e9, warmed=lambda _: UNIT_S)
    with backlog.place(named("a"), running("a", "mine")), backlog.place(named("b"), running("b", "yours")):
        backlog.measured(SPEC, UNIT_S / 10)
        assert backlog.left_s("mine") == pytest.approx(10)
        assert backlog.next_end_s("nobody") == 0


@pytest.mark.parametrize(
    ("seconds", "written"), [(0, "0ms"), (0.12, "120ms"), (1, "1s"), (59.4, "59s"), (360, "6m0s"), (3661, "1h1m1s")]
)
def test_durations_are_written_as_go_does(seconds: float, written: str) -> None:
    assert duration(seconds) == written
