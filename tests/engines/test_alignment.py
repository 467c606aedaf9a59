"""An image of any size is drawn where its reference is: what goes in comes back pixel by pixel, cut or blended.

The codec is short-circuited: it decodes what it encoded first, so a shift or a scaling by a single pixel shows.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from pipelines.checkpoints.work.plan import Plan, plan_job
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.denoising.step_observer import Pixels
from pipelines.images.drawing.finish import binary_mask, center_crop, composite, to_drawn_size, with_colours_of
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.images import Box, CheckpointSpec, ImageJob, RawImage
from tests.engines.device import DEVICE
from tests.support.image_jobs import image_job
from tests.support.tiny_families import make_family

SIZES = [(100, 67), (67, 100), (99, 99), (81, 61), (80, 64)]
Spec = Callable[[str], CheckpointSpec]
NOISE = np.random.default_rng(8)


@pytest.fixture(scope="module")
def loaded(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """With a native area that such images are drawn at."""

    def load(name: str) -> Checkpoint:
        if name in ("sd", "sd3", "klein"):
            made = spec(name)
        else:
            folder: Path = make_family(name, tmp_path_factory.mktemp("aligned") / name)
            made = replace(spec("klein"), name=name, path=folder)
        return load_checkpoint(replace(made, native_area_px=96 * 96, max_area_px=128 * 128), DEVICE)

    return functools.cache(load)


def noise(size: tuple[int, int]) -> RawImage:
    return RawImage(*size, "RGB", NOISE.integers(0, 256, (size[1], size[0], 3), np.uint8).tobytes())


def as_array(image: RawImage) -> Pixels:
    return np.frombuffer(image.data, np.uint8).reshape(image.height_px, image.width_px, -1)


@contextmanager
def decodes_what_it_encoded(checkpoint: Checkpoint) -> Iterator[None]:
    """The first image that the codec is given in a call is what it decodes."""
    codec, seen = checkpoint.components["vae"], []

    def encode(_: Any, pixels: tuple[torch.Tensor]) -> None:
        seen.append(pixels[0].clone())

    def decode(_: Any, __: Any, drawn: torch.Tensor) -> torch.Tensor:
        assert seen[0].shape[-2:] == drawn.shape[-2:]
        return seen[0].to(drawn)

    hooks = [codec.encoder.register_forward_pre_hook(encode), codec.decoder.register_forward_hook(decode)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def draw(checkpoint: Checkpoint, job: ImageJob) -> Pixels:
    with decodes_what_it_encoded(checkpoint):
        return ImagePipeline(checkpoint, Row(job, 0, 0.0), lambda _: None, PreviewMap()).generate()


def edit(checkpoint: Checkpoint, reference: RawImage, **fields: Any) -> ImageJob:
    size = {"width_px": reference.width_px, "height_px": reference.height_px}
    return image_job(checkpoint.spec, references=(reference,), strength=0.5, **size, **fields)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["sd", "sd3", "klein", "kontext"])
def test_a_reference_lies_under_what_is_drawn_of_it(
    name: str, size: tuple[int, int], loaded: Callable[[str], Checkpoint]
) -> None:
    reference = noise(size)
    assert np.array_equal(draw(loaded(name), edit(loaded(name), reference)), as_array(reference))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["sd", "sd3", "klein", "kontext"])
def test_a_masked_edit_is_painted_in_place(
    name: str, size: tuple[int, int], loaded: Callable[[str], Checkpoint]
) -> None:
    reference, mask = noise(size), RawImage(*size, "L", b"\xff" * (size[0] * size[1]))
    assert np.array_equal(draw(loaded(name), edit(loaded(name), reference, mask=mask)), as_array(reference))


@pytest.mark.parametrize("size", [(100, 67), (301, 199), (40, 30)])
@pytest.mark.parametrize("name", ["sd", "klein"])
def test_what_a_mask_keeps_is_kept_to_the_bit_at_any_size(
    name: str, size: tuple[int, int], loaded: Callable[[str], Checkpoint]
) -> None:
    """Drawn as it is and cut; in two passes; at the native area and reduced."""
    checkpoint, reference = loaded(name), noise(size)
    painted = np.zeros((size[1], size[0]), np.uint8)
    painted[size[1] // 3 :, : size[0] // 2] = 255
    job = edit(checkpoint, reference, mask=RawImage(*size, "L", painted.tobytes()))
    drawn = ImagePipeline(checkpoint, Row(job, 0, 0.0), lambda _: None, PreviewMap()).generate()
    changed = (drawn != as_array(reference)).any(axis=2)
    assert drawn.shape == (size[1], size[0], 3)
    assert not changed[painted == 0].any()
    assert changed[painted == 255].mean() > 0.9


@pytest.mark.parametrize("size", [(128, 96), (400, 300)])
@pytest.mark.parametrize("name", ["sd", "klein"])
def test_a_small_hole_is_drawn_large_and_put_back_to_its_place(
    name: str, size: tuple[int, int], loaded: Callable[[str], Checkpoint]
) -> None:
    """In an image of the native area, and in one that has two passes otherwise."""
    checkpoint, region = loaded(name), Box(60, 30, 40, 32)
    ramp = np.add.outer(np.arange(size[1]), np.arange(size[0])) % 200
    reference = RawImage(*size, "RGB", ramp.astype(np.uint8).repeat(3).tobytes())
    painted = np.zeros((size[1], size[0]), np.uint8)
    painted[38:54, 70:90] = 255
    job = edit(checkpoint, reference, mask=RawImage(*size, "L", painted.tobytes()), region=region)
    assert plan_job(job, checkpoint.multiple_px).width > 2 * region.width
    kept = draw(checkpoint, job).astype(int)
    assert np.abs(kept - as_array(reference)).max() <= 2
    shown: list[Pixels | None] = []
    pipeline = ImagePipeline(checkpoint, Row(job, 0, 0.0), lambda preview: shown.append(preview()), fitted(checkpoint))
    changed = (pipeline.generate() != as_array(reference)).any(axis=2)
    assert not changed[painted == 0].any()
    assert changed[painted == 255].mean() > 0.9
    assert all(each is not None and each.shape[:2] == (size[1], size[0]) for each in shown)


def fitted(checkpoint: Checkpoint) -> PreviewMap:
    """A map of the checkpoint's latents to colours, from one image."""
    found = PreviewMap()
    ImagePipeline(checkpoint, Row(image_job(checkpoint.spec), 0, 0.0), lambda _: None, found).generate()
    return found


SQUARE = (slice(32, 96), slice(40, 88))


def composite_into_square(checkpoint: Checkpoint, before: NDArray[Any], drawn: NDArray[Any]) -> NDArray[Any]:
    """The finished image of an edit whose hard mask is a square, of 128 x 128 px."""
    mask = np.zeros((128, 128), np.uint8)
    mask[SQUARE] = 255
    reference = RawImage(128, 128, "RGB", before.astype(np.uint8).tobytes())
    job = edit(checkpoint, reference, mask=RawImage(128, 128, "L", mask.tobytes()))
    finished = np.asarray(composite(Image.fromarray(drawn.clip(0, 255).astype(np.uint8)), job)).astype(int)
    assert (finished[mask == 0] == before[mask == 0]).all()
    return finished


def plain_sky() -> NDArray[Any]:
    """A sky of 128 x 128 px, whose colours change by half a level from row to row."""
    return np.stack([np.add.outer(np.arange(128) // 2, np.arange(128) // 4) + base for base in (90, 120, 150)], axis=2)


@pytest.mark.parametrize("moved", [(14, -9, 6), (90, 60, -70)], ids=["by the codec", "to another thing"])
def test_a_hard_mask_leaves_no_line_in_a_plain_sky(
    moved: tuple[int, int, int], loaded: Callable[[str], Checkpoint]
) -> None:
    """Where the codec moves all colours, and where a picture of another thing was drawn into the square alone: the step
    at the edge is about that of the sky itself, what is kept is equal, and the middle is as it was drawn."""
    sky = plain_sky()
    other = sky.copy()
    other[SQUARE] += np.array(moved)
    drawn = composite_into_square(loaded("sd"), sky, other) - sky
    allowed = 2 + max(map(abs, moved)) // 6  # the slope of a fade
    assert np.abs(np.diff(drawn, axis=0)).max() <= allowed
    assert np.abs(np.diff(drawn, axis=1)).max() <= allowed
    assert drawn[64, 64].tolist() == [*moved]


def test_nothing_of_a_thing_comes_back_where_the_mask_is_its_outline(loaded: Callable[[str], Checkpoint]) -> None:
    """A red thing in a sky becomes a green one: it has no rim of red, and none of sky. A faint mark goes."""
    before = plain_sky()
    drawn = before.copy()
    before[SQUARE], drawn[SQUARE] = (230, 30, 30), (20, 200, 40)
    assert np.abs(composite_into_square(loaded("sd"), before, drawn) - drawn).max() <= 4
    marked = plain_sky()
    marked[SQUARE] += 20
    assert np.abs(composite_into_square(loaded("sd"), marked, plain_sky()) - plain_sky()).max() <= 4


def test_a_redrawn_tile_keeps_its_colours_and_shows_its_detail() -> None:
    """Also where all of them have moved, by more at one side."""
    rows, columns = np.mgrid[0:128, 0:128]
    source = np.stack([80 + columns * 0.5, 120 + rows * 0.4, 200 - columns * 0.3], axis=2).round()
    detail = np.where((columns + rows) % 4 < 2, 6, -6)[..., None]
    drawn = Image.fromarray((source + detail + 20 - columns[..., None] * 0.2).clip(0, 255).astype(np.uint8))
    held = np.asarray(with_colours_of(Image.fromarray(source.astype(np.uint8)), drawn)).astype(int)
    assert np.abs(held - source - detail).mean() < 1.5
    low = Image.fromarray(held.astype(np.uint8)).filter(ImageFilter.GaussianBlur(8))
    before = Image.fromarray(source.astype(np.uint8)).filter(ImageFilter.GaussianBlur(8))
    assert np.abs(np.asarray(low).astype(int) - np.asarray(before)).max() <= 2


@pytest.mark.parametrize("finish", ["resize", "refine"])
def test_an_image_that_is_scaled_to_be_drawn_is_scaled_back_to_its_place(
    finish: Any, loaded: Callable[[str], Checkpoint]
) -> None:
    """The sides that are drawn are multiples, so they have not quite the shape of the image."""
    job = image_job(loaded("sd").spec, width_px=1001, height_px=501)
    marks = Image.new("RGB", (1001, 501))
    for left in (10, 480, 940):
        marks.paste("white", (left, 240, left + 50, 260))
    back = np.asarray(to_drawn_size(marks, job, Plan(352, 160, finish)).resize(marks.size, Image.Resampling.LANCZOS))[
        250
    ]
    for left in (10, 480, 940):
        bright = np.flatnonzero(back[left - 9 : left + 59, 0] > 127) + left - 9
        assert abs(int(bright[0]) - left) <= 1
        assert abs(int(bright[-1]) - (left + 49)) <= 1


def test_a_large_reference_of_a_small_image_is_scaled_once(loaded: Callable[[str], Checkpoint]) -> None:
    """A small image is drawn larger: its reference must not lose what fits into that."""
    lines = Image.fromarray(np.tile(np.array([0, 255], np.uint8).repeat(2), (128, 64)))
    job = image_job(loaded("sd").spec, width_px=64, height_px=32)
    drawn = to_drawn_size(lines, job, Plan(256, 128, "resize"))
    assert drawn.tobytes() == lines.tobytes()


def test_the_margin_continues_the_edges(loaded: Callable[[str], Checkpoint]) -> None:
    job = image_job(loaded("sd").spec, width_px=5, height_px=3)
    image = Image.fromarray(as_array(noise((5, 3))))
    padded = to_drawn_size(image, job, Plan(16, 8, "crop"))
    assert center_crop(padded, image.size).tobytes() == image.tobytes()
    assert padded.getpixel((0, 0)) == image.getpixel((0, 0))
    assert padded.getpixel((15, 7)) == image.getpixel((4, 2))


def test_a_soft_mask_blends_and_all_that_it_touches_is_painted(loaded: Callable[[str], Checkpoint]) -> None:
    size = (101, 67)
    ramp = np.tile(np.concatenate([np.zeros(25), np.linspace(0, 255, 51), np.full(25, 255)]).astype(np.uint8), (67, 1))
    gray, white = RawImage(*size, "RGB", b"\x64" * (101 * 67 * 3)), Image.new("RGB", size, "white")
    job = edit(loaded("sd"), gray, mask=RawImage(*size, "L", ramp.tobytes()))
    blended = np.asarray(composite(white, job))[..., 0].astype(float)
    assert np.abs(blended - (100 + ramp / 255 * 155)).max() <= 1
    assert (np.asarray(binary_mask(Image.fromarray(ramp))) == np.where(ramp > 0, 255, 0)).all()


@pytest.mark.parametrize("name", ["sd", "klein"])
def test_the_pipeline_repaints_where_a_mask_is_faint(name: str, loaded: Callable[[str], Checkpoint]) -> None:
    """A mask of 1 in 255 everywhere: what is drawn under it is a new image, of which one part in 255 shows."""
    size, drawn = (96, 96), []
    checkpoint, reference = loaded(name), noise((96, 96))
    for level in (1, 255):
        job = edit(checkpoint, reference, mask=RawImage(*size, "L", bytes([level]) * 96 * 96))
        drawn.append(ImagePipeline(checkpoint, Row(job, 0, 0.0), lambda _: None, PreviewMap()).generate().astype(int))
    faint, full = drawn
    original = as_array(reference).astype(int)
    assert np.abs(faint - (original + (full - original) / 255)).max() <= 1
    assert np.abs(faint - original).max() >= 1 or np.abs(full - original).max() < 127
