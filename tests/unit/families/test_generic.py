"""What is guessed of a class that no family knows: by its own check, its signature and its configs."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from pipelines.families.generic import Family
from pipelines.families.task import Task

IMAGE = Image.new("RGB", (8, 8))


class Pipeline:
    """Refuses heights that are no multiples of `height_multiple`; its check of the width is wrong, as some are."""

    def __init__(self, height_multiple: int) -> None:
        self.height_multiple = height_multiple

    def check_inputs(self, prompt: str, height: int, width: int, image: Any = None) -> None:
        if height % self.height_multiple:
            raise ValueError("`height` and `width` have to be divisible")


class NeedsImage(Pipeline):
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
        (NeedsImage(16), 16),
        (NeedsEmbeddings(16), 16),
        (ChecksPrompts(16), 16),
        (object(), 16),
    ],
)
def test_sides_are_multiples_of_what_the_pipeline_accepts(pipeline: Any, multiple: int) -> None:
    assert Family().size_multiple(pipeline) == multiple


def takes_either(image: "Image.Image | list[Image.Image] | None" = None) -> None: ...


def takes_one(image: "Image.Image | None" = None) -> None: ...


def unannotated(image=None) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


@pytest.mark.parametrize(
    ("call", "one"), [(takes_either, [IMAGE]), (takes_one, IMAGE), (unannotated, IMAGE)]
)  # fmt: skip
def test_a_reference_is_in_a_list_where_the_call_takes_lists(call: Any, one: Any) -> None:
    accepted = inspect.signature(call).parameters
    assert Family().reference_arguments(accepted, IMAGE, []) == {"image": one}
    assert Family().reference_arguments(accepted, IMAGE, [IMAGE]) == {"image": [IMAGE, IMAGE]}


def padded(max_sequence_length: int = 512) -> None: ...


@pytest.mark.parametrize(
    ("tokenizers", "tokens"),
    [
        ({"tokenizer": SimpleNamespace(model_max_length=77)}, 77),
        ({"tokenizer": SimpleNamespace(model_max_length=10**30)}, 512),
        ({"tokenizer": SimpleNamespace()}, None),
        ({"tokenizer": SimpleNamespace(model_max_length=77), "tokenizer_2": object()}, None),
    ],
)
def test_prompts_are_padded_to_the_only_tokenizers_limit(tokenizers: dict[str, Any], tokens: int | None) -> None:
    accepted = inspect.signature(padded).parameters
    assert Family().max_sequence_length(accepted, SimpleNamespace(**tokenizers)) == tokens


def needs_image(prompt, image, strength=1.0) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


def reads_images(prompt, image=None) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


def paints(prompt, image, mask_image) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


@pytest.mark.parametrize(
    ("call", "task", "draws_text"),
    [
        (padded, Task.TEXT, True),
        (needs_image, Task.REDRAW, False),
        (reads_images, Task.NATIVE, True),
        (paints, Task.INPAINT, False),
    ],
)
def test_a_call_says_what_it_draws_from(call: Any, task: Task, draws_text: bool) -> None:
    accepted = inspect.signature(call).parameters
    assert (Family().own_task(accepted), Family().draws_text(accepted)) == (task, draws_text)


def test_a_distilled_pipeline_ignores_guidance() -> None:
    accepted = dict.fromkeys(
        ("guidance_scale", "negative_prompt"), inspect.Parameter("x", inspect.Parameter.KEYWORD_ONLY)
    )
    assert Family().takes_guidance(accepted, {}, {})
    assert Family().takes_negative_prompt(accepted, {})
    assert not Family().takes_guidance(accepted, {"is_distilled": True}, {})
    assert not Family().takes_negative_prompt(accepted, {"is_distilled": True})
