"""The bounds of the image queue, and the Retry-After of a refusal."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.protocol.images import CheckpointSpec, Encoding, Finished, ImageJob, Progress
from server.accounts.calls import CallId
from server.errors import BadRequest, Overloaded, RateLimited
from server.flows.images.time_limit import check_time
from server.flows.rate_limits import go_duration
from server.state.active_calls import ActiveCall
from server.state.image_backlog import Backlog

SPEC = CheckpointSpec("c", Path("c"), None, "alpha", "img2img", 1, max_area_px=4_000_000)
JOB = ImageJob(
    id="job", checkpoint=SPEC, prompt="a boat", sampling=SPEC.sampling.resolve(steps=100), width_px=1024,
    height_px=1024, n=1, seed=1, references=(), mask=None, encoding=Encoding(), metadata={}, time_limit_s=9,
)  # fmt: skip
UNIT_S = 1e6 / 1024**2  # so that a step of the job takes a second


def running(name: str, key: str = "key") -> ActiveCall:
    return ActiveCall(CallId(name, key, "images.generations", "print", None), 0)


def named(name: str, n: int = 1) -> ImageJob:
    return replace(JOB, id=name, n=n)


async def test_work_is_bounded_by_its_time_and_retry_after_is_when_it_fits() -> None:
    backlog = Backlog(max_jobs=9, max_s=250, warmup_unit_s=lambda _: UNIT_S)  # a job takes 100 s
    first = running("a")
    with backlog.reserve(named("a"), first), backlog.reserve(named("b"), running("b")):
        assert backlog.remaining_s() == pytest.approx(200)
        with pytest.raises(Overloaded) as refused, backlog.reserve(named("c"), running("c")):
            pass
        assert refused.value.headers["Retry-After"] == "50"
        first.report(Progress(30, 100))
        with pytest.raises(Overloaded) as refused, backlog.reserve(named("c"), running("c")):
            pass
        assert refused.value.headers["Retry-After"] == "20"
        first.report(Progress(50, 100))
        with backlog.reserve(named("c"), running("c")):
            assert backlog.remaining_s() == pytest.approx(250)
    assert backlog.remaining_s() == 0


async def test_an_idle_server_takes_any_job() -> None:
    backlog = Backlog(max_jobs=9, max_s=10, warmup_unit_s=lambda _: UNIT_S)
    with backlog.reserve(named("a"), running("a")):
        with pytest.raises(Overloaded) as refused, backlog.reserve(named("b"), running("b")):
            pass
        assert refused.value.headers["Retry-After"] == "100"


async def test_the_number_of_jobs_is_bounded_too_and_the_shortest_ends_first() -> None:
    backlog = Backlog(max_jobs=2, max_s=1e9, warmup_unit_s=lambda _: UNIT_S / 5)
    with backlog.reserve(named("a", n=4), running("a")), backlog.reserve(named("b"), running("b")):
        with pytest.raises(Overloaded) as refused, backlog.reserve(named("c"), running("c")):
            pass
        assert refused.value.headers["Retry-After"] == "20"


async def test_a_full_server_is_full_until_a_job_has_ended() -> None:
    backlog, last = Backlog(max_jobs=1, max_s=1e9, warmup_unit_s=lambda _: UNIT_S), running("a")
    with backlog.reserve(named("a"), last):
        last.report(Progress(100, 100))
        with pytest.raises(Overloaded), backlog.reserve(named("b"), running("b")):
            pass


async def test_measured_speeds_replace_those_of_warmup() -> None:
    backlog = Backlog(max_jobs=9, max_s=1e9, warmup_unit_s=lambda _: UNIT_S)
    with backlog.reserve(named("a"), running("a", "mine")), backlog.reserve(named("b"), running("b", "yours")):
        backlog.record(JOB, Finished((), run_s=10.0, unit_s=UNIT_S / 10))
        assert backlog.remaining_s("mine") == pytest.approx(10)
        assert backlog.next_end_s("nobody") == 0


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
async def test_what_is_no_duration_changes_no_speed(seconds: float) -> None:
    backlog = Backlog(max_jobs=9, max_s=1e9, warmup_unit_s=lambda _: UNIT_S)
    backlog.record(JOB, Finished((), run_s=seconds, unit_s=seconds))
    with backlog.reserve(named("a"), running("a", "mine")):
        assert backlog.remaining_s("mine") == pytest.approx(100)
    assert backlog.least_s(JOB) == pytest.approx(50)


def test_the_least_time_of_a_job_goes_by_the_fastest_image() -> None:
    """The others were slowed down, or were too small to show what a step of large ones takes."""
    assert Backlog(max_jobs=9, max_s=1e9).least_s(JOB) is None, "nothing was measured"
    backlog = Backlog(max_jobs=9, max_s=1e9, warmup_unit_s=lambda _: UNIT_S)
    assert backlog.least_s(JOB) == pytest.approx(50), "half of what warmup took"
    for run_s in (300.0, 90.0, 200.0):
        backlog.record(JOB, Finished((), run_s=run_s, unit_s=UNIT_S))
    assert backlog.least_s(JOB) == pytest.approx(90 / 1.25)
    assert backlog.least_s(replace(JOB, n=3)) == pytest.approx(3 * 90 / 1.25)


@pytest.mark.parametrize(
    ("n", "steps", "least_s", "param", "remedy"),
    [
        (4, 100, 18.0, "n", "Ask for at most 2 images in a call."),
        (3, 100, 20.0, "n", "Ask for at most 1 image in a call."),
        (2, 100, 90.0, "steps", "Ask for at most 20 steps and one image, or for a smaller size."),
        (1, 30, 90.0, "steps", "Ask for at most 3 steps, or for a smaller size."),
        (1, 2, 90.0, "size", "Ask for a smaller size, or for another model."),
    ],
)
def test_what_cannot_end_in_time_is_refused_with_what_can(
    n: int, steps: int, least_s: float, param: str, remedy: str
) -> None:
    job = replace(JOB, n=n, sampling=replace(JOB.sampling, steps=steps))
    check_time(job, None)
    check_time(job, job.time_limit_s)
    with pytest.raises(BadRequest) as refused:
        check_time(job, least_s)
    error = refused.value
    assert (error.status, error.code, error.param) == (400, "exceeds_time_limit", param)
    assert f"takes {least_s:.0f} s of device time or more, and the limit is 9 s. {remedy} This" in error.message
    assert error.message.endswith("sets the limit (DARKROOM_JOB_TIME_LIMIT_S).")


@pytest.mark.parametrize(
    ("seconds", "written"), [(0, "0ms"), (0.12, "120ms"), (1, "1s"), (59.4, "59s"), (360, "6m0s"), (3661, "1h1m1s")]
)
def test_durations_are_written_as_go_does(seconds: float, written: str) -> None:
    assert go_duration(seconds) == written


async def test_a_key_may_take_its_share_of_the_queue_and_leaves_room_for_others() -> None:
    backlog = Backlog(max_jobs=4, max_s=400, key_share=0.5, warmup_unit_s=lambda _: UNIT_S)
    with backlog.reserve(named("a"), running("a", "mine")), backlog.reserve(named("b"), running("b", "mine")):
        with backlog.reserve(named("c", n=2), running("c", "yours")):
            assert backlog.remaining_s() == pytest.approx(400)
            with pytest.raises(Overloaded):
                backlog.reserve(named("d"), running("d", "mine")).__enter__()
        with backlog.reserve(named("c"), running("c", "yours")):
            with pytest.raises(RateLimited, match="This key has 2 jobs with about 200 s") as refused:
                backlog.reserve(named("d"), running("d", "mine")).__enter__()
            assert refused.value.headers["Retry-After"] == "100"


async def test_a_key_that_is_alone_may_take_all_and_another_still_finds_room() -> None:
    backlog = Backlog(max_jobs=4, max_s=400, key_share=0.5, warmup_unit_s=lambda _: UNIT_S)
    with ExitStack() as mine:
        for name in "abcd":
            mine.enter_context(backlog.reserve(named(name), running(name, "mine")))
        with pytest.raises(Overloaded, match="4 jobs"):
            backlog.reserve(named("e"), running("e", "mine")).__enter__()
        with backlog.reserve(named("e", n=2), running("e", "yours")):
            assert backlog.remaining_s() == pytest.approx(600)
            with pytest.raises(Overloaded):
                backlog.reserve(named("f"), running("f", "yours")).__enter__()
            with pytest.raises(Overloaded):
                backlog.reserve(named("f"), running("f", "third")).__enter__()


async def test_a_key_with_nothing_in_the_queue_may_send_a_job_of_any_length() -> None:
    backlog = Backlog(max_jobs=4, max_s=1000, key_share=0.1, warmup_unit_s=lambda _: UNIT_S)
    with backlog.reserve(named("a"), running("a", "yours")), backlog.reserve(named("b", n=5), running("b", "mine")):
        assert backlog.remaining_s() == pytest.approx(600)


async def test_a_job_waits_for_the_work_of_the_workers_that_may_draw_it() -> None:
    large = replace(SPEC, name="large", path=Path("large"))
    able = {SPEC: {"big", "small"}, large: {"big"}}
    backlog = Backlog(max_jobs=9, max_s=250, warmup_unit_s=lambda _: UNIT_S, workers=lambda spec: able[spec])
    with ExitStack() as stack:

        def enter(name: str, spec: CheckpointSpec) -> None:
            stack.enter_context(backlog.reserve(replace(named(name), checkpoint=spec), running(name)))

        for name in "abcd":
            enter(name, SPEC)  # 400 s on both: 200 on each
        with pytest.raises(Overloaded) as refused:
            enter("e", large)
        assert refused.value.headers["Retry-After"] == "50"
        enter("f", SPEC)  # 500 s on two, which may have 250 each
        with pytest.raises(Overloaded):
            enter("g", SPEC)
    with ExitStack() as stack:
        for name, steps in (("a", 60), ("b", 100)):
            short = replace(named(name), checkpoint=large, sampling=large.sampling.resolve(steps=steps))
            stack.enter_context(backlog.reserve(short, running(name)))
        with pytest.raises(Overloaded), backlog.reserve(replace(named("c"), checkpoint=large), running("c")):
            pass  # one worker has 160 s: the other one can't help
        estimate = backlog.estimate_job("b")
        assert estimate is not None
        assert estimate.estimated_s == pytest.approx(160)
