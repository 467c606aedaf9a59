"""Which rows share a batch, and in what order batches start."""

from pathlib import Path

import pytest

from pipelines.catalog.estimate import Speeds, work_units
from pipelines.images.batching import BatchLimits, Row, batch_key, form_batches
from pipelines.protocol.images import CheckpointSpec, ImageJob, Picture
from tests.support.image_jobs import image_job, with_fields

ALPHA = CheckpointSpec("alpha", Path("alpha"), None, "alpha", "img2img", 1)
BETA = CheckpointSpec("beta", Path("beta"), None, "beta", "native", 16)
REFERENCE = Picture(64, 64, "RGB", bytes(64 * 64 * 3))
JOB = image_job(ALPHA, width_px=1024, height_px=1024, steps=20)


def rows(*jobs: ImageJob) -> list[Row]:
    return [Row(job, index, 0.0) for job in jobs for index in range(job.n)]


def batches(waiting: list[Row], max_rows: int = 8, now: float = 0.0) -> list[list[str]]:
    formed = form_batches(waiting, BatchLimits(max_rows), Speeds(), now)
    return [[row.job.id for row in batch.rows] for batch in formed]


def test_rows_that_differ_in_prompt_and_seed_only_go_together() -> None:
    assert batches(rows(JOB, with_fields(JOB, id="b", prompt="a dog", seed=9))) == [["job", "b"]]


@pytest.mark.parametrize(
    "change",
    [
        {"width_px": 1536},
        {"steps": 14},
        {"guidance": 5.0},
        {"negative_prompt": "blue"},
        {"scheduler": "EulerDiscreteScheduler"},
        {"references": (REFERENCE,)},
        {"references": (REFERENCE,), "mask": Picture(64, 64, "L", bytes(64 * 64))},
        {"checkpoint": BETA},
        {"loras": (("sketch", 1.0),)},
    ],
)
def test_rows_that_need_other_passes_do_not(change: dict[str, object]) -> None:
    assert len(batches(rows(JOB, with_fields(JOB, id="b", **change)))) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"strength": 0.9},  # without references it has no effect
        {"negative_prompt": "green"},
    ],
)
def test_rows_that_differ_in_nothing_that_a_batch_shares_go_together(change: dict[str, object]) -> None:
    first = with_fields(JOB, negative_prompt="blue")
    assert batches(rows(first, with_fields(first, id="b", **change))) == [["job", "b"]]


def test_native_references_are_shared_by_one_calls_rows_and_no_others() -> None:
    one = with_fields(JOB, checkpoint=BETA, references=(REFERENCE,), n=2)
    assert batches(rows(one, with_fields(one, id="b", n=1))) == [["b"], ["job", "job"]]


def test_a_limit_splits_a_batch() -> None:
    assert [len(batch) for batch in batches(rows(with_fields(JOB, n=7)), max_rows=3)] == [1, 3, 3]


def test_running_out_of_memory_halves_the_limit_of_that_size_alone() -> None:
    limits = BatchLimits(8)
    limits.halve(batch_key(JOB), 6)
    assert limits.of(batch_key(JOB)) == 3
    assert limits.of(batch_key(with_fields(JOB, width_px=512))) == 8


def test_the_least_work_starts_first_until_another_has_waited_longer_than_its_work() -> None:
    draft = with_fields(JOB, id="draft", steps=4)
    assert batches(rows(JOB, draft)) == [["draft"], ["job"]]
    old = [Row(JOB, 0, queued_at=0.0), Row(draft, 0, queued_at=1000.0)]
    assert batches(old, now=1000.0) == [["job"], ["draft"]]


def test_a_row_that_failed_in_a_batch_runs_alone() -> None:
    alone, other = Row(JOB, 0, 0.0, alone=True), Row(with_fields(JOB, id="b"), 0, 0.0)
    assert sorted(batches([alone, other])) == [["b"], ["job"]]


def test_work_grows_with_pixels_steps_pictures_and_references() -> None:
    base = work_units(JOB)
    assert work_units(with_fields(JOB, steps=40)) == pytest.approx(2 * base)
    assert work_units(with_fields(JOB, n=3)) == pytest.approx(3 * base)
    assert work_units(with_fields(JOB, width_px=3840, height_px=2160)) > 2 * base
    native = with_fields(JOB, checkpoint=BETA, references=(REFERENCE, REFERENCE))
    assert work_units(native) == pytest.approx(3 * base)


def test_speeds_are_learned_by_checkpoint() -> None:
    speeds = Speeds()
    speeds.record(ALPHA, units=10, elapsed_s=5)
    assert speeds.unit_s(ALPHA) == pytest.approx(0.5)
    assert speeds.unit_s(BETA) == pytest.approx(0.5)
    speeds.record(BETA, units=10, elapsed_s=20)
    assert speeds.unit_s(BETA) == pytest.approx(2.0)
    assert speeds.unit_s(ALPHA) == pytest.approx(0.5)


def test_a_first_picture_that_compiled_does_not_make_the_next_ones_look_slow() -> None:
    speeds = Speeds()
    speeds.record(ALPHA, units=1, elapsed_s=60)
    speeds.record(ALPHA, units=1, elapsed_s=1)
    assert speeds.unit_s(ALPHA) == 1
    speeds.record(ALPHA, units=1, elapsed_s=2)
    assert 1 < speeds.unit_s(ALPHA) < 2
