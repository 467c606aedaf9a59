"""A sampling field has one name from the request and the catalog to the job."""

from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from pipelines.protocol.images import CheckpointSpec, Sampling, SamplingDefaults
from server.catalog.schema import SamplingTable
from server.schemas.images import SamplingOptions, Scale, Times

SPEC = CheckpointSpec("x", Path("x"), None, "alpha", "img2img", 1, sampling=SamplingDefaults(guidance=2.0))
NAMES = [field.name for field in fields(Sampling)]


def test_a_request_sets_fields_of_the_record_and_the_catalog_all_of_its_defaults() -> None:
    assert SamplingOptions.model_fields.keys() <= set(NAMES)
    assert [field.name for field in fields(SamplingDefaults)] == list(SamplingTable.model_fields)


def test_what_a_request_sets_replaces_the_defaults() -> None:
    assert SPEC.sampling.resolve(steps=4, strength=0.9) == Sampling(steps=4, guidance=2.0, strength=0.9)


@pytest.mark.parametrize("given", ["\u00b2", "\u00b2x", "9" * 5000, "8x", "2.0", ""])
def test_a_scale_that_is_none_is_refused_with_those_that_there_are(given: str) -> None:
    scale: TypeAdapter[Times] = TypeAdapter(Scale)
    assert [scale.validate_python(each) for each in ("2", "4x", "4X", 2, "4k")] == [2, 4, 4, 2, "4K"]
    with pytest.raises(ValidationError, match="Input should be 2, 4, '1K', '2K' or '4K'"):
        scale.validate_python(given)
