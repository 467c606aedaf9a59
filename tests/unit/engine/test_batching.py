"""In what order waiting images start, and how much work they are."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.checkpoints.work.estimate import FIRST_UNIT_S, Speeds, Timing, unit_s_at, work_units
from pipelines.images.scheduling.batching import Row, start_order
from pipelines.images.scheduling.fairness import in_order
from pipelines.images.scheduling.scheduler import DeviceTurn
from pipelines.protocol.images import CheckpointSpec, Control, ControlInput, RawImage
from tests.support.image_jobs import image_job, with_fields

ALPHA = CheckpointSpec("alpha", Path("alpha"), None, "alpha", "img2img", 1)
BETA = CheckpointSpec("beta", Path("beta"), None, "beta", "native", 16)
REFERENCE = RawImage(64, 64, "RGB", bytes(64 * 64 * 3))
JOB = image_job(ALPHA, width_px=1024, height_px=1024, steps=20)


def order(*waiting: Row, used: Mapping[str, float] | None = None) -> list[str]:
    return [row.job.id for row, _ in start_order(waiting, [], Speeds(), lambda turns: in_order(turns, used or {}))]


def row(job_id: str, queued_at: float = 0.0, **fields: object) -> Row:
    return Row(with_fields(JOB, id=job_id, **fields), 0, queued_at)


def test_the_least_work_starts_first_until_another_is_far_behind_its_share() -> None:
    image, draft = row("picture"), row("draft", steps=4)
    assert order(image, draft) == ["draft", "picture"]
    image.turn.owed_s = image.units() * Speeds().unit_s(ALPHA)
    assert order(image, draft) == ["picture", "draft"]


def test_an_image_that_starts_over_is_owed_what_it_lacked() -> None:
    image = row("picture", queued_at=7.0, owner="me")
    image.turn.owed_s, image.turn.device_s, image.turn.in_prologue = 5.0, 2.0, False
    image.start_over()
    turn = image.turn
    assert (turn.owed_s, turn.device_s, turn.since, turn.owner, turn.in_prologue) == (3.0, 0.0, 7.0, "me", True)


def test_one_of_another_key_does_not_wait_for_all_of_the_first_ones() -> None:
    mine = [row(f"mine {number}", steps=4, owner="me") for number in range(32)]
    started = order(*mine, row("yours", steps=4, owner="you"))
    assert started.index("yours") <= 1


def test_a_key_that_has_used_the_device_starts_behind_one_that_has_not() -> None:
    assert order(row("busy", owner="me"), row("idle", owner="you"), used={"me": 30.0}) == ["idle", "busy"]


def test_each_is_told_how_many_of_those_that_run_go_before_it() -> None:
    draft, image = row("draft", steps=4), row("picture")
    half = image.units() * Speeds().unit_s(ALPHA) / 2
    running = [DeviceTurn(half), DeviceTurn(3 * half)]
    started = start_order([draft, image], running, Speeds(), lambda turns: in_order(turns, {}))
    assert started == [(draft, 0), (image, 1)]


def test_work_grows_with_pixels_steps_images_and_references() -> None:
    base = work_units(JOB)
    assert work_units(with_fields(JOB, steps=40)) == pytest.approx(2 * base)
    assert work_units(with_fields(JOB, n=3)) == pytest.approx(3 * base)
    assert work_units(with_fields(JOB, width_px=3840, height_px=2160)) > 2 * base
    native = with_fields(JOB, checkpoint=BETA, references=(REFERENCE, REFERENCE))
    assert work_units(native) == pytest.approx(3 * base)


def test_controlnets_are_work_of_the_first_pass_and_ip_adapters_are_not() -> None:
    controls = (Control("edges", "controlnet", Path("e")), Control("style", "ip-adapter", Path("s")))
    alpha = replace(ALPHA, controls=controls)
    edges, style = (ControlInput(each.name, REFERENCE, 1.0) for each in controls)
    for size in ({}, {"width_px": 3840, "height_px": 2160}):
        plain = with_fields(JOB, checkpoint=alpha, **size)
        added = [work_units(with_fields(plain, controls=used)) - work_units(plain) for used in ((edges,), (style,))]
        assert added[0] == pytest.approx(work_units(JOB) / 3, rel=0.02), "tiles follow the image, not the map"
        assert added[1] == 0


def test_speeds_are_learned_by_checkpoint() -> None:
    speeds = Speeds()
    speeds.record(ALPHA, units=10, elapsed_s=5)
    assert speeds.unit_s(ALPHA) == pytest.approx(0.5)
    assert speeds.unit_s(BETA) == pytest.approx(0.5)
    speeds.record(BETA, units=10, elapsed_s=20)
    assert speeds.unit_s(BETA) == pytest.approx(2.0)
    assert speeds.unit_s(ALPHA) == pytest.approx(0.5)


def test_a_first_image_that_compiled_does_not_make_the_next_ones_look_slow() -> None:
    speeds = Speeds()
    speeds.record(ALPHA, units=1, elapsed_s=60)
    speeds.record(ALPHA, units=1, elapsed_s=1)
    assert speeds.unit_s(ALPHA) == 1
    speeds.record(ALPHA, units=1, elapsed_s=2)
    assert 1 < speeds.unit_s(ALPHA) < 2


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 0.0])
def test_what_is_no_duration_changes_no_speed(seconds: float) -> None:
    speeds = Speeds()
    speeds.begin_with(ALPHA, seconds)
    speeds.record(ALPHA, units=1, elapsed_s=seconds)
    assert speeds.unit_s(ALPHA) == FIRST_UNIT_S
    speeds.record(ALPHA, units=1, elapsed_s=2)
    speeds.record(ALPHA, units=1, elapsed_s=seconds)
    assert speeds.unit_s(ALPHA) == 2


def test_a_guess_lasts_until_something_is_measured() -> None:
    speeds = Speeds()
    for seconds in (8.0, 9.0):
        speeds.guess(ALPHA, seconds)
        assert speeds.unit_s(ALPHA) == seconds
    speeds.record(ALPHA, units=1, elapsed_s=10)
    assert speeds.unit_s(ALPHA) == 10.0
    speeds.guess(ALPHA, 1.0)
    assert speeds.unit_s(ALPHA) == 10.0
    speeds.begin_with(BETA, 2.0)
    speeds.record(BETA, units=1, elapsed_s=3)
    assert 2 < speeds.unit_s(BETA) < 3


@pytest.mark.parametrize(
    ("timings", "expected"),
    [
        ([(0.0625, 0.35), (0.125, 0.40), (0.0625, 0.30)], 0.3 - 0.1 + 1.6),  # 0.2 s, and 1.6 s a unit
        ([(0.0625, 0.30), (0.125, 0.60)], 4.8),  # nothing fixed
        ([(0.0625, 0.30), (0.125, 0.20)], 0.2),  # nothing but
        ([(0.125, 0.30)], 2.4),
        ([(0.0625, 0.02), (0.125, 0.90)], 0.32),  # the larger one was disturbed
    ],
)
def test_the_speed_of_an_image_is_guessed_from_smaller_ones(
    timings: list[tuple[float, float]], expected: float
) -> None:
    assert unit_s_at([Timing(*each) for each in timings], 1.0) == pytest.approx(expected)


def test_nothing_is_guessed_from_nothing() -> None:
    assert unit_s_at([], 1.0) is None
