"""The task of a job, and what follows from it."""

from pathlib import Path

import pytest

from pipelines.checkpoints.work.estimate import first_pass_steps
from pipelines.checkpoints.work.plan import task_of
from pipelines.families.task import Task
from pipelines.protocol.images import CheckpointSpec, Conditioning, RawImage
from tests.support.image_jobs import image_job

REFERENCE = RawImage(64, 64, "RGB", bytes(64 * 64 * 3))
MASK = RawImage(64, 64, "L", bytes(64 * 64))


@pytest.mark.parametrize(
    ("conditioning", "references", "mask", "task"),
    [
        ("img2img", (), None, Task.TEXT),
        ("native", (), None, Task.TEXT),
        ("img2img", (REFERENCE,), None, Task.REDRAW),
        ("native", (REFERENCE,), None, Task.NATIVE),
        ("img2img", (REFERENCE,), MASK, Task.INPAINT),
        ("native", (REFERENCE,), MASK, Task.INPAINT),
    ],
)
def test_the_task_follows_from_the_mode_the_references_and_the_mask(
    conditioning: Conditioning, references: tuple[RawImage, ...], mask: RawImage | None, task: Task
) -> None:
    spec = CheckpointSpec("x", Path("x"), None, "alpha", conditioning, 16)
    job = image_job(spec, references=references, mask=mask, steps=20, strength=0.5)
    assert task_of(job) is task
    assert first_pass_steps(job) == (20 if task.starts_from_noise else 10)
