"""Images of one and of four channels: what is announced, what is in the file, and what it shows on white."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from pipelines.images.drawing.returned_image import ReturnedImage
from pipelines.images.engine import ImageEngine
from pipelines.images.tasks import UnsupportedTask
from pipelines.protocol.images import CheckpointSpec, Encoding, Failed, Finished, ImageJob, Preview, RawImage, Runtime
from pipelines.protocol.pixels import flattened, with_alpha
from tests.engines.device import DEVICE
from tests.engines.test_families import family_spec
from tests.support.image_jobs import image_job
from tests.support.tiny_families import NEEDED, make_family
from tests.support.tiny_families.channels import qwen_image_21, sd15_with_alpha, with_channels

COLOURS = ("white", "red")
TRANSPARENT = Encoding(background="transparent")
SpecOf = Callable[[int], CheckpointSpec]


@pytest.fixture(scope="module")
def spec_of(tmp_path_factory: pytest.TempPathFactory) -> SpecOf:
    """The spec of a checkpoint whose images have so many channels."""
    folder = tmp_path_factory.mktemp("channels")
    for channels in (1, 4):
        with_channels(channels).save_pretrained(folder / str(channels), safe_serialization=True)
    return lambda channels: family_spec(str(channels), folder, "img2img")


def opened(image_file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(image_file))


def pixels(image: Image.Image) -> NDArray[np.int16]:
    return np.asarray(image).astype(np.int16)


async def draw(engine: ImageEngine, job: ImageJob) -> Image.Image:
    finished = [event async for event in engine.submit(job)][-1]
    assert isinstance(finished, Finished), finished
    return opened(finished.images[0].data)


@pytest.mark.parametrize(("values", "refused"), [((0.0, 1.0), False), ((-0.4, 0.6), True), ((0.0, 1.4), True)])
def test_values_that_are_no_levels_make_no_image(values: tuple[float, float], refused: bool) -> None:
    """Some classes return what their codec decoded, from -1 to 1, of which the dark half would be black."""
    returned = ReturnedImage(torch.tensor(values).repeat(1, 3, 4, 2))
    with pytest.raises(UnsupportedTask, match="not from 0 to 1") if refused else contextlib.nullcontext():
        assert np.ptp(np.asarray(returned.image())) == 255


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["deepfloyd-if", "kandinsky3", "kandinsky21", "kandinsky22", "prx-pixel"])
async def test_levels_are_those_that_the_class_itself_gives_an_image(name: str, tmp_path: Path) -> None:
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    spec = family_spec(name, make_family(name, tmp_path / name).parent, "img2img")
    spec = replace(spec, runtime=Runtime(dtype="float32"))
    job = image_job(spec, width_px=64, height_px=64, steps=2, seed=5)
    ours = pixels(await draw(ImageEngine(DEVICE), job))
    theirs = diffusers.DiffusionPipeline.from_pretrained(spec.path)(
        job.prompt, height=64, width=64, num_inference_steps=2, guidance_scale=job.sampling.guidance,
        generator=torch.Generator("cpu").manual_seed(5),
    ).images[0]  # fmt: skip
    assert np.abs(ours - pixels(theirs)).max() <= 1


def reference() -> RawImage:
    noise = np.random.default_rng(3).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    return RawImage(64, 64, "RGB", noise.tobytes())


async def test_a_codec_with_alpha_is_found_and_each_of_its_images_has_the_background_that_was_asked_for(
    spec_of: SpecOf,
) -> None:
    spec = spec_of(4)
    engine = ImageEngine(DEVICE)
    capabilities = await engine.prepare(spec)
    assert "transparent" in capabilities.names
    assert (capabilities.references, capabilities.mask, capabilities.second_pass) == (1, True, True)
    opaque = await draw(engine, image_job(spec))
    assert opaque.mode == "RGB"
    for kind in ("png", "webp"):
        kept = await draw(engine, image_job(spec, encoding=Encoding(kind, background="transparent")))
        assert kept.mode == "RGBA"
        least, most = kept.getchannel("A").getextrema()
        assert least < most, "an alpha channel of one value shows nothing"
        assert np.abs(pixels(flattened(kept)) - pixels(opaque)).max() <= 1, "opaque is not the same image on white"
    in_jpeg = await draw(engine, image_job(spec, encoding=Encoding("jpeg")))
    assert np.abs(pixels(in_jpeg) - pixels(opaque)).mean() < 4
    engine.close()


@pytest.mark.nightly
async def test_references_masks_previews_and_a_second_pass_keep_alpha(spec_of: SpecOf) -> None:
    spec = spec_of(4)
    engine = ImageEngine(DEVICE)
    await engine.prepare(spec)
    edited = await draw(engine, image_job(spec, references=(reference(),), encoding=TRANSPARENT))
    assert edited.getchannel("A").getextrema()[0] < 255

    mask = RawImage(64, 64, "L", (b"\xff" * 32 + b"\0" * 32) * 64)
    painted = await draw(
        engine, image_job(spec, references=(reference(),), mask=mask, strength=1.0, encoding=TRANSPARENT)
    )
    sent = np.frombuffer(reference().data, np.uint8).reshape(64, 64, 3)
    right = pixels(painted.crop((32, 0, 64, 64)))
    assert (right[:, :, :3] == sent[:, 32:]).all(), "what was not painted has changed"
    assert (right[:, :, 3] == 255).all(), "what was not painted has changed"
    assert painted.crop((0, 0, 32, 64)).getchannel("A").getextrema()[0] < 255

    events = [event async for event in engine.submit(image_job(spec, steps=4, previews=2, encoding=TRANSPARENT))]
    previews = [opened(event.image.data) for event in events if isinstance(event, Preview)]
    assert [preview.mode for preview in previews] == ["RGBA", "RGBA"]

    large = image_job(spec, width_px=128, height_px=128)
    on_white = await draw(engine, large)
    refined = await draw(engine, replace(large, encoding=TRANSPARENT))
    assert refined.size == (128, 128)
    assert refined.getchannel("A").getextrema()[0] < 255
    assert np.abs(pixels(flattened(refined)) - pixels(on_white)).max() <= 1
    engine.close()


@pytest.mark.nightly
async def test_grey_images_are_drawn_and_have_no_transparency(spec_of: SpecOf) -> None:
    spec = spec_of(1)
    engine = ImageEngine(DEVICE)
    capabilities = await engine.prepare(spec)
    assert (capabilities.transparent, capabilities.references, capabilities.mask) == (False, 1, True)
    grey = await draw(engine, image_job(spec))
    red, green, blue = (np.asarray(channel) for channel in grey.split())
    assert (red == green).all()
    assert (green == blue).all()
    assert red.min() < red.max()
    failed = [event async for event in engine.submit(image_job(spec, encoding=TRANSPARENT))][-1]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.param) == ("unsupported", "background")
    engine.close()


async def test_qwen_image_21_draws_with_and_without_a_background(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    qwen_image_21().save_pretrained(tmp_path / "qwen21", safe_serialization=True)
    spec = replace(family_spec("qwen21", tmp_path, "native"), max_references=0, native_area_px=128 * 128)
    engine = ImageEngine(DEVICE)
    capabilities = await engine.prepare(spec)
    assert capabilities.transparent, capabilities.failed_checks
    job = image_job(spec, width_px=128, height_px=128)
    kept, opaque = await draw(engine, replace(job, encoding=TRANSPARENT)), await draw(engine, job)
    assert (kept.mode, opaque.mode) == ("RGBA", "RGB")
    assert np.abs(pixels(flattened(kept)) - pixels(opaque)).max() <= 1
    engine.close()


@pytest.mark.nightly
async def test_an_image_with_alpha_is_never_taken_for_latents(tmp_path: Path) -> None:
    sd15_with_alpha().save_pretrained(tmp_path / "sd15", safe_serialization=True)
    engine = ImageEngine(DEVICE)
    capabilities = await engine.prepare(family_spec("sd15", tmp_path, "img2img"))
    assert capabilities.transparent
    assert (capabilities.references, capabilities.mask, capabilities.second_pass) == (0, False, False)
    engine.close()


def test_colours_that_look_alike_on_white_are_found_for_each_alpha() -> None:
    noise = np.random.default_rng(1).integers(0, 255, (32, 32, 4), dtype=np.uint8)
    image = Image.fromarray(noise)
    again = with_alpha(flattened(image), image.getchannel("A"))
    assert np.abs(pixels(flattened(again)) - pixels(flattened(image))).max() <= 1
    assert np.abs(pixels(again.getchannel("A")) - noise[:, :, 3]).max() <= 1
    empty, too_dark = (with_alpha(Image.new("RGB", (1, 1), colour), Image.new("L", (1, 1), 0)) for colour in COLOURS)
    assert empty.getpixel((0, 0)) == (255, 255, 255, 0)
    assert too_dark.getpixel((0, 0)) == (255, 0, 0, 255), "a colour is lost behind alpha"
