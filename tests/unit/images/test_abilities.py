"""What a checkpoint can't do is refused by field, before anything is held."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.catalog.images import Catalog, ImageModel, load_catalog
from pipelines.protocol.messages import Abilities
from server.errors import BadRequest
from server.flows.images.request import ImageRequest, check_options
from server.flows.references import Reference
from server.schemas.images import SamplingOptions

REPOSITORY = Path(__file__).resolve().parents[3]
ALL = Abilities(
    text=True, references=2, mask=True, second_pass=True, negative_prompt=True, guidance=True, any_steps=True
)
PICTURE = {"references": (Reference("image[0]", "data:,"),)}
DULL = {"sampling": SamplingOptions(negative_prompt="dull")}
MASK = {**PICTURE, "mask": Reference("mask", "data:,")}


@pytest.fixture(scope="module")
def beta() -> ImageModel:
    catalog: Catalog = load_catalog(REPOSITORY / "model_configs", REPOSITORY / "weights")
    return next(model for model in catalog.models.values() if model.checkpoint.conditioning == "native")


@pytest.mark.parametrize(
    ("lacks", "fields", "param", "message"),
    [
        ({"text": False}, {}, "image", "edits pictures: send 'image'"),
        ({"text": False, "references": 0}, {}, "mask", "send 'image' and 'mask'"),
        ({"text": False, "references": 0}, PICTURE, "mask", "with a mask only: send 'mask' too"),
        ({"references": 0, "mask": False}, PICTURE, "image", "takes no reference images"),
        ({"references": 1}, {"references": PICTURE["references"] * 2}, "image", "at most 1 reference image, but got 2"),
        ({"mask": False}, MASK, "mask", "takes no mask"),
        ({"negative_prompt": False}, DULL, "negative_prompt", "takes no negative prompt"),
        ({"guidance": False}, {"sampling": SamplingOptions(guidance=3.0)}, "guidance", "without guidance"),
        ({"any_steps": False}, {"sampling": SamplingOptions(steps=17)}, "steps", "steps only: leave 'steps' out"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_do_is_refused_by_field(
    beta: ImageModel, lacks: dict[str, Any], fields: dict[str, Any], param: str, message: str
) -> None:
    request = ImageRequest(endpoint="images.generations", prompt="a boat", model=beta.name, **fields)
    check_options(request, beta, 10, ALL)
    with pytest.raises(BadRequest, match=message) as refused:
        check_options(request, beta, 10, replace(ALL, **lacks))
    assert refused.value.param == param


def test_the_default_number_of_steps_may_be_named(beta: ImageModel) -> None:
    sampling = SamplingOptions(steps=beta.steps)
    request = ImageRequest(endpoint="images.generations", prompt="a boat", model=beta.name, sampling=sampling)
    check_options(request, beta, 10, replace(ALL, any_steps=False))
