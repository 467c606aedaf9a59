"""How a size is drawn."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pipelines.checkpoints.work.plan import fit_to_area, partial, plan_image, tile_grid
from pipelines.protocol.images import CheckpointSpec

SPEC = CheckpointSpec("x", Path("x"), None, "alpha", "img2img", 1)
SIDES = st.integers(1, 500).map(lambda n: n * 16)


def test_an_image_near_the_native_area_is_drawn_as_it_is() -> None:
    plan = plan_image(SPEC, 1360, 1024, 32)
    assert (plan.width, plan.height, plan.finish) == (1376, 1024, "crop")


def test_a_small_image_is_drawn_at_the_native_area_and_reduced() -> None:
    plan = plan_image(SPEC, 256, 256, 16)
    assert (plan.width, plan.height, plan.finish) == (1024, 1024, "resize")


def test_a_slightly_larger_image_is_drawn_at_the_native_area_and_enlarged() -> None:
    spec = replace(SPEC, max_area_px=SPEC.native_area_px)
    plan = plan_image(spec, 1792, 1024, 64)
    assert (plan.width, plan.height, plan.finish, plan.tiles) == (1344, 768, "resize", ())
    assert plan_image(spec, 1792, 1072, 64).finish == "refine"


@given(width=SIDES, height=SIDES, multiple=st.sampled_from([8, 16, 64]))
def test_what_is_drawn_fits_the_area_and_keeps_the_shape(width: int, height: int, multiple: int) -> None:
    fitted = fit_to_area(width, height, SPEC.native_area_px, multiple)
    assert fitted[0] % multiple == fitted[1] % multiple == 0
    ideal = math.sqrt(SPEC.native_area_px / (width * height))
    if min(width, height) * ideal > multiple:
        assert math.prod(fitted) <= SPEC.native_area_px
    for side, wanted in zip(fitted, (width, height), strict=True):
        assert abs(side - wanted * ideal) < multiple


def test_a_large_image_is_drawn_natively_and_redrawn_in_tiles_of_native_area() -> None:
    plan = plan_image(SPEC, 3840, 2160, 16)
    assert plan.finish == "refine"
    assert plan.width * plan.height <= SPEC.native_area_px
    assert all(tile.width * tile.height <= SPEC.native_area_px for tile in plan.tiles)


@given(width=SIDES, height=SIDES, side=st.integers(1, 64).map(lambda n: n * 32), multiple=st.sampled_from([8, 16]))
def test_tiles_cover_the_canvas_and_overlap(width: int, height: int, side: int, multiple: int) -> None:
    side = max(side, max(width, height) // 12 // 32 * 32)  # no absurd numbers of tiles
    tiles = tile_grid(width, height, side, multiple)
    assert all(0 <= t.left <= width - t.width and 0 <= t.top <= height - t.height for t in tiles)
    assert all(t.width % multiple == t.height % multiple == 0 for t in tiles)
    for starts, size, length in (
        (sorted({t.left for t in tiles}), tiles[0].width, width),
        (sorted({t.top for t in tiles}), tiles[0].height, height),
    ):
        assert starts[0] == 0
        assert starts[-1] + size == length
        assert all(after - before < size for before, after in itertools.pairwise(starts))


@given(steps=st.integers(1, 200), strength=st.floats(0, 1, exclude_min=True))
def test_a_partial_run_runs_a_step_and_leaves_one_out(steps: int, strength: float) -> None:
    part = partial(steps, strength)
    assert steps <= part.steps <= max(steps, 100) + 10
    assert part.steps * part.strength == part.run
    assert 1 <= part.run <= part.steps - (strength < 1)
    assert abs(part.run - part.steps * strength) < 1 or part.run == 1


def test_more_steps_and_more_strength_run_more() -> None:
    assert [partial(steps, 0.6).run for steps in (14, 17, 20)] == [8, 10, 12]
    assert [partial(20, strength).run for strength in (0.1, 0.5, 0.9, 1.0)] == [2, 10, 18, 20]
