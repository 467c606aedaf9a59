"""A sampling field has one name from the request and the catalog to the job, and the batch key contains it."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from pipelines.catalog.schema import SamplingTable
from pipelines.images.batching import batch_key
from pipelines.protocol.images import CheckpointSpec, Sampling, SamplingDefaults
from server.schemas.images import SamplingOptions
from tests.support.image_jobs import image_job

SPEC = CheckpointSpec("x", Path("x"), None, "alpha", "img2img", 1, sampling=SamplingDefaults(guidance=2.0))
NAMES = [field.name for field in fields(Sampling)]


def test_a_request_sets_fields_of_the_record_and_the_catalog_all_of_its_defaults() -> None:
    assert SamplingOptions.model_fields.keys() <= set(NAMES)
    assert [field.name for field in fields(SamplingDefaults)] == list(SamplingTable.model_fields)


def test_what_a_request_sets_replaces_the_defaults() -> None:
    assert SPEC.sampling.resolve(steps=4, strength=0.9) == Sampling(steps=4, guidance=2.0, strength=0.9)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"strength", "negative_prompt"}])
def test_jobs_that_differ_in_a_sampling_field_never_share_a_batch(name: str) -> None:
    job = image_job(SPEC)
    other = replace(job, sampling=replace(job.sampling, **{name: object()}))
    assert batch_key(job) != batch_key(other)
