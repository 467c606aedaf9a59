"""What a pipeline's call takes, by its own check and its signature."""

import inspect
from typing import Any

import pytest
from PIL import Image

from pipelines.images.families.call_arguments import references
from pipelines.images.families.size_multiple import size_multiple

PICTURE = Image.new("RGB", (8, 8))


class Pipeline:
    """Refuses heights that are no multiples of `height_multiple`; its check of the width is wrong, as some are."""

    def __init__(self, height_multiple: int) -> None:
        self.height_multiple = height_multiple

    def check_inputs(self, prompt: str, height: int, width: int, image: Any = None) -> None:
        if height % self.height_multiple:
            raise ValueError("`height` and `width` have to be divisible")


class NeedsPicture(Pipeline):
    def check_inputs(self, prompt: str, height: int, width: int, image: Any = None) -> None:
        raise ValueError("`image` input cannot be undefined.")


class NeedsEmbeddings(Pipeline):
    def check_inputs(self, prompt: str, height: int, width: int, embeddings: Any) -> None:  # type: ignore[override]
        embeddings.shape  # noqa: B018


class ChecksPrompts(Pipeline):
    def check_inputs(self, prompt: str) -> None:  # type: ignore[override]
        raise ValueError


@pytest.mark.parametrize(
    ("pipeline", "multiple"),
    [
        (Pipeline(8), 16),
        (Pipeline(16), 16),
        (Pipeline(32), 32),
        (Pipeline(64), 64),
        (NeedsPicture(16), 16),
        (NeedsEmbeddings(16), 16),
        (ChecksPrompts(16), 16),
        (object(), 16),
    ],
)
def test_sides_are_multiples_of_what_the_pipeline_accepts(pipeline: Any, multiple: int) -> None:
    assert size_multiple(pipeline, 16) == multiple


def takes_either(image: "Image.Image | list[Image.Image] | None" = None) -> None: ...


def takes_one(image: "Image.Image | None" = None) -> None: ...


def unannotated(image=None) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


@pytest.mark.parametrize(
    ("call", "one"), [(takes_either, [PICTURE]), (takes_one, PICTURE), (unannotated, PICTURE)]
)  # fmt: skip
def test_a_reference_is_in_a_list_where_the_call_takes_lists(call: Any, one: Any) -> None:
    accepted = inspect.signature(call).parameters
    assert references(accepted, PICTURE, []) == one
    assert references(accepted, PICTURE, [PICTURE]) == [PICTURE, PICTURE]
