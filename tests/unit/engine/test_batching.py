"""Which rows share a batch, and in what order batches start."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.catalog.estimate import Speeds, work_units
from pipelines.images.batching import Bounds, Row, batch_key, form_batches
from pipelines.protocol.images import CheckpointSpec, Encoding, ImageJob, Picture

ALPHA = CheckpointSpec("alpha", Path("alpha"), None, "alpha", "img2img", 1)
BETA = CheckpointSpec("beta", Path("beta"), None, "beta", "native", 16)
REFERENCE = Picture(64, 64, "RGB", bytes(64 * 64 * 3))
JOB = ImageJob(
    id="job", checkpoint=ALPHA, prompt="a cat", negative_prompt="", width_px=1024, height_px=1024, n=1, steps=20,
    guidance=4.0, strength=0.6, seed=1, references=(), mask=None, encoding=Encoding(), metadata={}, time_limit_s=60,
)  # fmt: skip


def rows(*jobs: ImageJob) -> list[Row]:
    return [Row(job, index, 0.0) for job in jobs for index in range(job.n)]


def batches(waiting: list[Row], most: int = 8, now: float = 0.0) -> list[list[str]]:
    formed = form_batches(waiting, Bounds(most), Speeds(), now)
    return [[row.job.id for row in batch.rows] for batch in formed]


def test_rows_that_differ_in_prompt_and_seed_only_go_together() -> None:
    assert batches(rows(JOB, replace(JOB, id="b", prompt="a dog", seed=9))) == [["job", "b"]]


@pytest.mark.parametrize(
    "change",
    [
        {"width_px": 1536},
        {"steps": 14},
        {"guidance": 5.0},
        {"negative_prompt": "blue"},
        {"references": (REFERENCE,)},
        {"references": (REFERENCE,), "mask": Picture(64, 64, "L", bytes(64 * 64))},
        {"checkpoint": BETA},
        {"loras": (("sketch", 1.0),)},
    ],
)
def test_rows_that_need_other_passes_do_not(change: dict[str, object]) -> None:
    assert len(batches(rows(JOB, replace(JOB, id="b", **change)))) == 2  # type: ignore[arg-type]


def test_native_references_are_shared_by_one_calls_rows_and_no_others() -> None:
    one = replace(JOB, checkpoint=BETA, references=(REFERENCE,), n=2)
    assert batches(rows(one, replace(one, id="b", n=1))) == [["b"], ["job", "job"]]


def test_a_bound_cuts_a_batch() -> None:
    assert [len(batch) for batch in batches(rows(replace(JOB, n=7)), most=3)] == [1, 3, 3]


def test_running_out_of_memory_halves_the_bound_of_that_size_alone() -> None:
    bounds = Bounds(8)
    bounds.halve(batch_key(JOB), 6)
    assert bounds.of(batch_key(JOB)) == 3
    assert bounds.of(batch_key(replace(JOB, width_px=512))) == 8


def test_the_least_work_starts_first_until_another_has_waited_longer_than_its_work() -> None:
    draft = replace(JOB, id="draft", steps=4)
    assert batches(rows(JOB, draft)) == [["draft"], ["job"]]
    old = [Row(JOB, 0, since=0.0), Row(draft, 0, since=1000.0)]
    assert batches(old, now=1000.0) == [["job"], ["draft"]]


def test_a_row_that_failed_in_company_runs_alone() -> None:
    alone, other = Row(JOB, 0, 0.0, alone=True), Row(replace(JOB, id="b"), 0, 0.0)
    assert sorted(batches([alone, other])) == [["b"], ["job"]]


def test_work_grows_with_pixels_steps_pictures_and_references() -> None:
    base = work_units(JOB)
    assert work_units(replace(JOB, steps=40)) == pytest.approx(2 * base)
    assert work_units(replace(JOB, n=3)) == pytest.approx(3 * base)
    assert work_units(replace(JOB, width_px=3840, height_px=2160)) > 2 * base
    native = replace(JOB, checkpoint=BETA, references=(REFERENCE, REFERENCE))
    assert work_units(native) == pytest.approx(3 * base)


def test_speeds_are_learned_by_checkpoint() -> None:
    speeds = Speeds()
    speeds.measured(ALPHA, units=10, took_s=5)
    assert speeds.unit_s(ALPHA) == pytest.approx(0.5)
    assert speeds.unit_s(BETA) == pytest.approx(0.5)
    speeds.measured(BETA, units=10, took_s=20)
    assert speeds.unit_s(BETA) == pytest.approx(2.0)
    assert speeds.unit_s(ALPHA) == pytest.approx(0.5)


def test_a_first_picture_that_compiled_does_not_make_the_next_ones_look_slow() -> None:
    speeds = Speeds()
    speeds.measured(ALPHA, units=1, took_s=60)
    speeds.measured(ALPHA, units=1, took_s=1)
    assert speeds.unit_s(ALPHA) == 1
    speeds.measured(ALPHA, units=1, took_s=2)
    assert 1 < speeds.unit_s(ALPHA) < 2
