"""How references condition a job's images. Pure; the one place that compares a checkpoint's conditioning mode.

It is here, not in pipelines.images, because the work estimate and the server ask too.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pipelines.families.task import Task
from pipelines.protocol.images import CheckpointSpec, Conditioning, ImageJob


class Mode(NamedTuple):
    """A conditioning mode of catalog files."""

    task: Task  # of a request with references and no mask
    max_references: int  # unless the catalog file says


MODES: Mapping[Conditioning, Mode] = {
    "img2img": Mode(Task.REDRAW, max_references=1),
    "native": Mode(Task.NATIVE, max_references=16),
    "upscale": Mode(Task.REDRAW, max_references=1),
}


def task_of(job: ImageJob) -> Task:
    """Return the task of every image of a job."""
    return find_task(job.checkpoint, has_references=bool(job.references), has_mask=job.mask is not None)


def find_task(spec: CheckpointSpec, *, has_references: bool, has_mask: bool) -> Task:
    """Return the task of a request to a checkpoint, before there is a job."""
    if not has_references:
        return Task.TEXT
    return Task.INPAINT if has_mask else MODES[spec.conditioning].task
