"""How many images may share a forward pass."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.checkpoints.work.estimate import WeightsKey
from pipelines.images.scheduling.row_limits import MIN_SAMPLES, RENEW_AFTER, PassShape, RowLimits
from pipelines.protocol.images import Runtime, StepCache

WEIGHTS = WeightsKey(Path("x"), None, None, Runtime(), "")
SHAPE = PassShape(WEIGHTS, 512, 512)


def learned(seconds: dict[int, float], shape: PassShape = SHAPE) -> RowLimits:
    limits = RowLimits(16)
    for rows, elapsed_s in seconds.items():
        for _ in range(MIN_SAMPLES):
            limits.record(shape, rows, elapsed_s)
    return limits


def crowded(seconds: dict[int, float]) -> RowLimits:
    """Learned, with a queue so long that the mean answer goes by the throughput."""
    limits = learned(seconds)
    limits.expect([SHAPE] * 1000)
    return limits


def test_the_first_limit_is_by_latent_tokens() -> None:
    limits = RowLimits(16)
    sides = {256: 16, 512: 8, 1024: 2, 2048: 1}
    assert {side: limits.of(PassShape(WEIGHTS, side, side)) for side in sides} == sides
    assert limits.of(PassShape(WEIGHTS, 1024, 1024, references=3)) == 1


def test_an_image_is_measured_alone_before_more_share() -> None:
    assert learned({8: 2.0}).of(SHAPE) == 1


def test_it_grows_while_that_makes_an_images_part_shorter() -> None:
    assert crowded({1: 1.0, 8: 2.0}).of(SHAPE) == 16
    assert crowded({1: 1.0, 2: 1.2, 4: 2.38}).of(SHAPE) == 2, "four are hardly faster than two"


def test_a_device_that_gains_nothing_draws_one_at_a_time_and_tries_again_later() -> None:
    limits = crowded({1: 1.0, 2: 1.98, 8: 7.9})
    assert limits.of(SHAPE) == 1
    for _ in range(RENEW_AFTER):
        limits.record(SHAPE, 1, 1.0)
    assert limits.of(SHAPE) > 1


def test_passes_that_were_disturbed_do_not_count() -> None:
    limits = crowded({1: 1.0, 2: 1.2})
    for seconds in (60.0, 0.01):
        limits.record(SHAPE, 2, seconds)
    assert limits.of(SHAPE) == 4


@pytest.mark.parametrize(
    ("equal", "most"),
    [
        (2, 1),  # both would end after 1.8: in a queue, after 1 and 2
        (4, 1),
        (8, 2),  # 0.9 x 10 / 2, and in a queue 9 / 2
    ],
)
def test_few_callers_do_not_wait_for_each_other_where_little_is_gained(equal: int, most: int) -> None:
    limits = learned({1: 1.0, 2: 1.8, 4: 3.6})
    limits.expect([SHAPE] * equal)
    assert limits.of(SHAPE) == most


@pytest.mark.parametrize("equal", range(2, 17))
@pytest.mark.parametrize("fixed_s", [0.0, 0.02, 0.1, 0.3, 0.5, 0.8])
def test_the_mean_answer_is_hardly_later_than_in_a_queue(equal: int, fixed_s: float) -> None:
    """A pass costs something, and more by the image."""
    seconds = {rows: fixed_s + (1 - fixed_s) * rows for rows in (1, 2, 4, 8, 16)}
    limits = learned(seconds)
    limits.expect([SHAPE] * equal)
    rows = min(limits.of(SHAPE), equal)
    cost_s = fixed_s + (1 - fixed_s) * rows
    ends = [cost_s * (number // rows + 1) for number in range(equal)]
    assert sum(ends) / equal <= (equal + 1) / 2 * 1.05  # the last share may have room
    assert max(ends) <= equal + cost_s - 1


def test_what_was_measured_outlives_the_process() -> None:
    limits = crowded({1: 1.0, 2: 1.98})
    assert limits.has_new_measurements(WEIGHTS)
    assert not limits.has_new_measurements(WEIGHTS)
    again = RowLimits(16)
    again.restore(WEIGHTS, limits.export(WEIGHTS))
    assert again.of(SHAPE) == 1
    assert not again.has_new_measurements(WEIGHTS)
    other = WEIGHTS._replace(path=Path("other"))
    assert limits.export(other) == []


@pytest.mark.parametrize("elapsed_s", [math.nan, math.inf, -1.0])
def test_what_is_no_duration_changes_no_limit(elapsed_s: float) -> None:
    limits = crowded({1: 1.0, 2: 1.2, 4: 2.38})
    for rows in (1, 2, 4):
        limits.record(SHAPE, rows, elapsed_s)
    assert limits.of(SHAPE) == 2


def test_running_out_of_memory_halves_the_limit_of_that_size_alone() -> None:
    limits = crowded({1: 1.0, 8: 2.0})
    limits.halve(SHAPE, 6)
    assert limits.of(SHAPE) == 3
    assert limits.of(PassShape(WEIGHTS, 512, 768)) > 3


@pytest.mark.parametrize(
    "runtime", [Runtime(batch="exact"), Runtime(cache=StepCache("first-block")), Runtime(max_batch=1)]
)
def test_some_draw_each_image_alone(runtime: Runtime) -> None:
    shape = replace(SHAPE, weights=WEIGHTS._replace(runtime=runtime))
    assert RowLimits(16).most(shape) == RowLimits(16).of(shape) == 1


def test_memory_of_sizes_is_bounded() -> None:
    limits = RowLimits(16)
    for width in range(1, 1000):
        limits.record(PassShape(WEIGHTS, width, 64), 1, 1.0)
    assert len(limits._learned) <= 256
