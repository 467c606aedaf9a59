"""Images of pipelines that choose their own size: exact, filled to the edge, and not cut."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.denoising.step_observer import Pixels
from pipelines.images.drawing.finish import MAX_FADE_PX
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.finished_image import WrongSize, to_planned_size
from pipelines.protocol.images import CheckpointSpec, RawImage, SamplingDefaults
from tests.engines.conftest import left_half, plain_image
from tests.engines.device import DEVICE
from tests.support.image_jobs import image_job
from tests.support.tiny_families import make_family

# Kontext scales every size to `max_area`, HiDream to its own area, which is 1024 x 1024 here.
OWN_SIZE = ["kontext", "hidream"]
SHAPES = [(1792, 1024), (1536, 1024), (1024, 1792), (512, 512), (2048, 880)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    made: dict[str, Checkpoint] = {}

    def load(name: str) -> Checkpoint:
        if name not in made:
            folder = make_family(name, tmp_path_factory.mktemp("own-size") / name)
            made[name] = load_checkpoint(checkpoint_spec(name, folder), DEVICE)
        return made[name]

    return load


def checkpoint_spec(name: str, folder: Path) -> CheckpointSpec:
    return CheckpointSpec(
        name=name, path=folder, config=None, family="beta", conditioning="native", max_references=1,
        native_area_px=1024**2, max_area_px=1_850_000, sampling=SamplingDefaults(guidance=2.0, refine_strength=0.5),
    )  # fmt: skip


@pytest.mark.daily("kontext-shape0", "hidream-shape3")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OWN_SIZE)
def test_an_image_fills_the_size_that_was_asked(
    name: str, shape: tuple[int, int], loaded: Callable[[str], Checkpoint]
) -> None:
    job = image_job(loaded(name).spec, width_px=shape[0], height_px=shape[1], steps=1)
    image = ImagePipeline(loaded(name), Row(job, 0, 0.0), lambda _: None, PreviewMap()).generate()
    assert image.shape == (shape[1], shape[0], 3)
    edges = {"top": image[0], "bottom": image[-1], "left": image[:, 0], "right": image[:, -1]}
    assert all(edge.any() for edge in edges.values()), f"black: {[k for k, edge in edges.items() if not edge.any()]}"


def test_kontext_draws_the_size_itself_instead_of_scaling(loaded: Callable[[str], Checkpoint]) -> None:
    sizes = []
    checkpoint = loaded("kontext")
    job = image_job(checkpoint.spec, width_px=1792, height_px=1024, steps=1, references=(plain_image(),))
    pipeline = ImagePipeline(checkpoint, Row(job, 0, 0.0), lambda _: None, PreviewMap())
    handle = checkpoint.components["vae"].decoder.register_forward_pre_hook(
        lambda _, arguments: sizes.append(tuple(arguments[0].shape[-2:]))
    )
    pipeline.generate()
    handle.remove()
    assert sizes == [(1024 // 8, 1792 // 8)]


class Sizes:
    """Of what a checkpoint's codec encodes and decodes, width and height in px. It decodes a black image with a white
    frame."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.encoded: list[tuple[int, int]] = []
        self.decoded: list[tuple[int, int]] = []
        codec = checkpoint.components["vae"]
        self._handles = [
            codec.encoder.register_forward_pre_hook(self._encode),
            codec.decoder.register_forward_hook(self._decode),
        ]

    def _encode(self, _: Any, pixels: tuple[torch.Tensor]) -> None:
        self.encoded.append((pixels[0].shape[-1], pixels[0].shape[-2]))

    def _decode(self, _: Any, __: Any, image: torch.Tensor) -> torch.Tensor:
        self.decoded.append((image.shape[-1], image.shape[-2]))
        framed = torch.full_like(image, 1.0)
        framed[..., 4:-4, 4:-4] = -1.0
        return framed

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


@pytest.fixture
def sizes_of(loaded: Callable[[str], Checkpoint]) -> Iterator[Callable[[str], Sizes]]:
    made: list[Sizes] = []

    def watch(name: str) -> Sizes:
        made.append(Sizes(loaded(name)))
        return made[-1]

    yield watch
    for sizes in made:
        sizes.remove()


def draw(checkpoint: Checkpoint, size: tuple[int, int], **fields: Any) -> Pixels:
    """With a native area of 256 x 256."""
    spec = replace(checkpoint.spec, native_area_px=256**2, max_area_px=116_000)
    job = image_job(spec, width_px=size[0], height_px=size[1], **fields)
    return ImagePipeline(checkpoint, Row(job, 0, 0.0), lambda _: None, PreviewMap()).generate()


@pytest.mark.parametrize("size", [(448, 256), (256, 448), (320, 256), (256, 320), (304, 240)])
def test_kontext_repaints_the_image_at_its_own_size(
    size: tuple[int, int], loaded: Callable[[str], Checkpoint], sizes_of: Callable[[str], Sizes]
) -> None:
    """Its call stretches it to one of 17 sizes by default, of which none has the shape of most images."""
    sizes = sizes_of("kontext")
    references = (plain_image(*size), plain_image(1600, 400))
    drawn = draw(loaded("kontext"), size, references=references, mask=left_half(*size), steps=2, strength=1.0)
    assert sizes.decoded == [size]
    assert set(sizes.encoded) == {size, (512, 128)}
    faded = math.ceil(3 * MAX_FADE_PX)  # within the mask's edge
    assert (drawn[:, : size[0] // 2 - faded][4:-4, 4:] == 0).all()
    assert (drawn[:, size[0] // 2 :] == (200, 100, 50)).all()


def test_kontext_reads_a_reference_of_the_images_shape_at_its_size(
    loaded: Callable[[str], Checkpoint], sizes_of: Callable[[str], Sizes]
) -> None:
    sizes = sizes_of("kontext")
    for reference in (plain_image(896, 512), plain_image(1600, 400)):
        draw(loaded("kontext"), (448, 256), references=(reference,), steps=1)
    assert sizes.encoded == [(448, 256), (512, 128)]


def test_kontext_redraws_tiles_at_their_own_size(
    loaded: Callable[[str], Checkpoint], sizes_of: Callable[[str], Sizes]
) -> None:
    sizes = sizes_of("kontext")
    drawn = draw(loaded("kontext"), (640, 320), steps=1)
    assert drawn.shape == (320, 640, 3)
    assert len(sizes.decoded) > 2
    assert max(max(size) for size in sizes.decoded) < 512


@pytest.mark.nightly
@pytest.mark.parametrize("size", [(496, 240), (240, 496)])
def test_a_repainted_image_of_another_size_is_scaled_back(
    size: tuple[int, int], loaded: Callable[[str], Checkpoint], sizes_of: Callable[[str], Sizes]
) -> None:
    """The pipeline has stretched what it repaints. A cut would move it, and leave out a part of the frame."""
    sizes = sizes_of("hidream")
    mask = RawImage(*size, "L", b"\xff" * (size[0] * size[1]))
    drawn = draw(loaded("hidream"), size, references=(plain_image(*size),), mask=mask, steps=2, strength=1.0)
    width, height = sizes.decoded[-1]
    assert (width, height) != size
    assert abs(width / height - size[0] / size[1]) > 0.01
    assert all(edge.min() > 100 for edge in (drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]))


@pytest.mark.parametrize("drawn", [(1360, 768), (640, 368), (1792, 1008), (1808, 1024)])
def test_another_size_is_scaled_to_cover(drawn: tuple[int, int]) -> None:
    """A frame along the edge is still there afterwards, or was cut by a few pixels: nothing is padded."""
    white = Image.new("RGB", drawn, "white")
    assert np.asarray(to_planned_size(white, (1792, 1024))).min() == 255
    assert to_planned_size(white, (1792, 1024)).size == (1792, 1024)


def test_the_middle_is_not_cut_out_of_a_larger_image() -> None:
    left_black = Image.new("RGB", (1024, 1024), "white")
    left_black.paste("black", (0, 0, 256, 1024))
    scaled = np.asarray(to_planned_size(left_black, (512, 512)))
    assert scaled[:, :120].max() == 0
    assert scaled[:, 136:].min() == 255


@pytest.mark.parametrize("drawn", [(1024, 1024), (1024, 1792)])
def test_another_shape_is_refused(drawn: tuple[int, int]) -> None:
    with pytest.raises(WrongSize, match=f"drew {drawn[0]}x{drawn[1]} where 1792x1024 was asked"):
        to_planned_size(Image.new("RGB", drawn), (1792, 1024))
