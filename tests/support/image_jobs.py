"""Image jobs for tests, whose fields and sampling fields are set alike."""

from dataclasses import fields, replace
from typing import Any

from pipelines.protocol.images import CheckpointSpec, Encoding, ImageJob, Sampling

SAMPLING_FIELDS = {field.name for field in fields(Sampling)}


def image_job(checkpoint: CheckpointSpec, **changes: Any) -> ImageJob:
    """One 64 x 64 image in two steps, with the checkpoint's sampling, but for what is given."""
    job = ImageJob(
        id="job", checkpoint=checkpoint, prompt="a red boat", sampling=checkpoint.sampling.resolve(steps=2),
        width_px=64, height_px=64, n=1, seed=5, references=(), mask=None, encoding=Encoding(),
        metadata={"prompt": "a red boat"}, time_limit_s=600,
    )  # fmt: skip
    return with_fields(job, **changes)


def with_fields(job: ImageJob, **changes: Any) -> ImageJob:
    """Replace fields of the job or of its sampling."""
    sampling = {name: changes.pop(name) for name in SAMPLING_FIELDS & changes.keys()}
    return replace(job, sampling=replace(job.sampling, **sampling), **changes)
