"""Three real pipeline classes, every way in: text, references, masks, sizes, seeds."""

import functools
from collections.abc import Callable

import numpy as np
import pytest

from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.denoising.step_observer import OnStep, Pixels, PreviewFn
from pipelines.images.drawing.finish import combine_references
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.images import CheckpointSpec, ImageJob, RawImage, SamplingDefaults
from pipelines.protocol.pixels import to_image
from tests.engines.conftest import left_half, plain_image, split_image
from tests.engines.device import DEVICE

CLASSES = ["sd", "sd3", "klein"]
Job = Callable[..., ImageJob]


@pytest.fixture(scope="session")
def loaded(spec: Callable[[str], CheckpointSpec]) -> Callable[[str], Checkpoint]:
    return functools.cache(lambda name: load_checkpoint(spec(name), DEVICE))


def draw(checkpoint: Checkpoint, job: ImageJob, index: int = 0) -> Pixels:
    return image_pipeline(checkpoint, job, index=index).generate()


def image_pipeline(
    checkpoint: Checkpoint, job: ImageJob, on_step: OnStep = lambda _: None, index: int = 0
) -> ImagePipeline:
    return ImagePipeline(checkpoint, Row(job, index, 0.0), on_step, PreviewMap())


@pytest.mark.parametrize("name", CLASSES)
def test_text_gives_the_size_that_was_asked(name: str, loaded: Callable[[str], Checkpoint], job: Job) -> None:
    assert draw(loaded(name), job(name, width_px=80, height_px=64)).shape == (64, 80, 3)


@pytest.mark.parametrize("name", CLASSES)
def test_a_seed_gives_the_same_pixels_and_another_seed_does_not(
    name: str, loaded: Callable[[str], Checkpoint], job: Job
) -> None:
    first = draw(loaded(name), job(name))
    assert np.array_equal(first, draw(loaded(name), job(name)))
    assert not np.array_equal(first, draw(loaded(name), job(name, seed=6)))


@pytest.mark.parametrize("name", CLASSES)
def test_image_i_of_n_is_the_image_of_seed_plus_i(name: str, loaded: Callable[[str], Checkpoint], job: Job) -> None:
    assert np.array_equal(draw(loaded(name), job(name, n=3), index=2), draw(loaded(name), job(name, seed=7)))


@pytest.mark.parametrize("name", CLASSES)
def test_a_reference_changes_the_image(name: str, loaded: Callable[[str], Checkpoint], job: Job) -> None:
    upright, across = (
        draw(loaded(name), job(name, references=(split_image(upright=upright),))) for upright in (True, False)
    )
    assert not np.array_equal(upright, across)
    assert not np.array_equal(upright, draw(loaded(name), job(name)))


def test_strength_says_how_far_img2img_leaves_the_reference(loaded: Callable[[str], Checkpoint], job: Job) -> None:
    """With random weights the image means nothing, but less strength must run fewer of the steps."""
    jobs = [job("sd", steps=10, strength=strength, references=(plain_image(),)) for strength in (0.2, 0.9)]
    assert [image_pipeline(loaded("sd"), one).steps for one in jobs] == [2, 9]


def test_further_references_are_read_as_one_sheet(loaded: Callable[[str], Checkpoint], job: Job) -> None:
    several = (plain_image(), split_image(upright=True), split_image(upright=False))
    sheet = combine_references([to_image(image) for image in several], 1)[1]
    as_image = RawImage(sheet.width, sheet.height, "RGB", sheet.tobytes())
    by_hand = draw(loaded("klein"), job("klein", references=(several[0], as_image)))
    assert np.array_equal(draw(loaded("klein"), job("klein", references=several, sheet_from=1)), by_hand)
    black, orange = (0, 0, 0), (255, 128, 0)
    left, right = sheet.crop((0, 0, 512, 512)), sheet.crop((512, 0, 1024, 512))
    assert sheet.size == (1024, 512)
    assert [left.getpixel((10, 256)), left.getpixel((500, 256))] == [black, orange]
    assert [right.getpixel((256, 10)), right.getpixel((256, 500))] == [black, orange]


def test_several_references_all_count_on_a_native_checkpoint(loaded: Callable[[str], Checkpoint], job: Job) -> None:
    one, two, other = (
        draw(loaded("klein"), job("klein", references=tuple(split_image(upright=upright) for upright in cuts)))
        for cuts in ([True], [True, True], [True, False])
    )
    assert not np.array_equal(one, two)
    assert not np.array_equal(two, other)


def test_a_reference_of_the_images_shape_lies_on_what_is_drawn(loaded: Callable[[str], Checkpoint], job: Job) -> None:
    """The pipeline itself takes a larger reference as it is, or cuts it to whole tokens."""
    larger, same, other = (
        draw(loaded("klein"), job("klein", references=(plain_image(width, height),)))
        for width, height in ((96, 96), (64, 64), (128, 64))
    )
    assert np.array_equal(larger, same)
    assert not np.array_equal(other, same)


@pytest.mark.parametrize("name", CLASSES)
def test_a_mask_leaves_the_rest_exactly_as_it_was(name: str, loaded: Callable[[str], Checkpoint], job: Job) -> None:
    drawn = draw(loaded(name), job(name, references=(plain_image(),), mask=left_half(), strength=1.0))
    assert (drawn[:, 32:] == (200, 100, 50)).all()
    assert not (drawn[:, :32] == (200, 100, 50)).all()


@pytest.mark.parametrize("name", CLASSES)
def test_large_images_come_out_at_their_exact_size_in_two_passes(
    name: str, loaded: Callable[[str], Checkpoint], job: Job
) -> None:
    steps = 0

    def count(_: PreviewFn) -> None:
        nonlocal steps
        steps += 1

    large = image_pipeline(loaded(name), job(name, width_px=208, height_px=112, steps=4), count)
    assert large.plan.finish == "refine"
    assert large.generate().shape == (112, 208, 3)
    assert steps >= 4 + len(large.plan.tiles)


def test_a_large_image_is_never_a_plain_resize(loaded: Callable[[str], Checkpoint], job: Job) -> None:
    """Two tiles of the same prompt and different noise differ, where an enlargement would be smooth."""
    images = [
        draw(loaded("sd"), job("sd", width_px=192, height_px=192, steps=4, refine_strength=strength))
        for strength in (0.01, 0.9)
    ]
    assert not np.array_equal(*images)


def test_a_mask_on_a_large_image_still_keeps_the_rest(loaded: Callable[[str], Checkpoint], job: Job) -> None:
    large = job("sd", width_px=192, height_px=128, references=(plain_image(192, 128),), mask=left_half(192, 128))
    assert (draw(loaded("sd"), large)[:, 96:] == (200, 100, 50)).all()


@pytest.mark.parametrize("name", CLASSES)
def test_small_images_are_drawn_larger_and_reduced(name: str, loaded: Callable[[str], Checkpoint], job: Job) -> None:
    assert draw(loaded(name), job(name, width_px=32, height_px=16)).shape == (16, 32, 3)


@pytest.mark.parametrize("name", CLASSES)
def test_every_task_uses_the_same_weights(name: str, loaded: Callable[[str], Checkpoint]) -> None:
    checkpoint = loaded(name)
    for task in checkpoint.task_classes:
        pipeline = checkpoint.pipeline(task)
        assert pipeline.vae is checkpoint.components["vae"]
        assert pipeline.scheduler is not checkpoint.components["scheduler"]


def test_the_catalogs_scheduler_is_used(loaded: Callable[[str], Checkpoint], job: Job) -> None:
    sampling = SamplingDefaults(guidance=2.0, scheduler="EulerDiscreteScheduler")
    assert type(loaded("sd").pipeline(None, sampling).scheduler).__name__ == "EulerDiscreteScheduler"
