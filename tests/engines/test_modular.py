"""Modular pipelines are checkpoints like others, and their index sends nobody to a hub."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import diffusers
import numpy as np
import pytest

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import CheckpointSpec, Conditioning, Finished, Preview, Runtime
from tests.engines.conftest import split_image
from tests.engines.device import DEVICE
from tests.engines.shared_passes import difference, drawn, drawn_together
from tests.engines.test_families import family_spec
from tests.support.image_jobs import image_job, with_fields
from tests.support.tiny_adapters import NAMINGS, layers_of, random_pairs, save
from tests.support.tiny_families import make_family
from tests.support.tiny_families.modular import CLASSES, NEED_TORCHVISION, REPOSITORY, make_modular
from tests.support.weight_files import inspect_checkpoint

EXACT = Runtime(dtype="float32")  # images are compared
SpecOf = Callable[[str], CheckpointSpec]


@pytest.fixture(scope="module")
def spec_of(tmp_path_factory: pytest.TempPathFactory) -> SpecOf:
    """The spec of a modular checkpoint by its name."""
    folder = tmp_path_factory.mktemp("modular")

    def spec(name: str) -> CheckpointSpec:
        if not (folder / name).exists():
            make_modular(name, folder / name)
        return replace(family_spec(name, folder, "img2img"), runtime=EXACT)

    return spec


async def test_a_modular_pipeline_draws_what_the_other_one_draws_of_the_same_parts(
    spec_of: SpecOf, tmp_path: Path
) -> None:
    spec, engine = spec_of("modular-sd3"), ImageEngine(DEVICE)
    capabilities = await engine.prepare(spec)
    assert capabilities.names == ["text", "image", "negative_prompt", "guidance", "steps"]
    assert (capabilities.second_pass, capabilities.at_once, capabilities.failed_checks) == (True, True, ())
    make_family("sd3", tmp_path / "sd3")
    other = family_spec("sd3", tmp_path, "img2img")
    job = image_job(spec, guidance=3.0, negative_prompt="fog")
    (ours,) = await drawn(engine, job)
    (theirs,) = await drawn(engine, replace(job, checkpoint=replace(other, runtime=EXACT)))
    assert np.ptp(ours) > 0
    assert np.abs(ours.astype(int) - theirs).max() <= 1

    events = [event async for event in engine.submit(with_fields(job, steps=4, previews=2))]
    assert [event.number for event in events if isinstance(event, Preview)] == [0, 1]
    one, other = [
        (await drawn(engine, replace(job, references=(split_image(upright=upright),))))[0] for upright in (True, False)
    ]
    assert np.abs(one.astype(int) - other).max() > 8, "the reference changes nothing"
    engine.close()


# How references enter, how many, and what else warmup finds
FOUND: dict[str, tuple[Conditioning, int, str]] = {
    "modular-z-image": ("img2img", 1, "text image negative_prompt guidance steps"),
    "modular-flux": ("img2img", 1, "text image guidance steps"),
    "modular-sdxl": ("img2img", 1, "text image mask negative_prompt guidance steps"),
    "modular-qwen-image": ("img2img", 1, "text image mask negative_prompt guidance steps"),
    "modular-qwen-edit": ("native", 1, "image negative_prompt guidance steps"),
    "modular-qwen-edit-plus": ("native", 16, "image negative_prompt guidance steps"),
    "modular-qwen-layered": ("native", 1, "image negative_prompt guidance steps transparent layers"),
    "modular-qwen-image-21": ("native", 16, "text image negative_prompt guidance steps transparent"),
    "modular-qwen-image-21-turbo": ("native", 16, "text image steps transparent"),
    "modular-kontext": ("native", 1, "text image guidance steps"),
    "modular-flux2": ("native", 16, "text image guidance steps"),
    "modular-klein": ("native", 16, "text image steps"),
    "modular-klein-base": ("native", 16, "text image guidance steps"),
    "modular-flux3": ("native", 16, "text image negative_prompt guidance steps"),
    "modular-flux3-distilled": ("native", 16, "text image steps"),
    "modular-krea2": ("img2img", 0, "text negative_prompt guidance steps"),
    "modular-krea2-turbo": ("img2img", 0, "text steps"),
    "modular-ernie-image": ("img2img", 0, "text negative_prompt guidance steps"),
    "modular-ideogram4": ("img2img", 0, "text guidance steps"),
    "modular-anima": ("img2img", 1, "text image negative_prompt guidance steps"),
}


def skip_without_libraries(name: str) -> None:
    """Skip a test of a checkpoint whose class or library is not installed."""
    class_name, _ = CLASSES[name]
    if not hasattr(diffusers, class_name):
        pytest.skip(f"diffusers {diffusers.__version__} has no {class_name}")
    if name in NEED_TORCHVISION:
        pytest.importorskip("torchvision")


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FOUND)
async def test_a_modular_class_draws_what_its_blocks_promise(name: str, tmp_path: Path) -> None:
    skip_without_libraries(name)
    if (name, DEVICE.type) == ("modular-z-image", "cuda"):
        pytest.skip("its blocks guide in bfloat16: random weights' guidance is lost in rounding")
    conditioning, references, names = FOUND[name]
    inspection = inspect_checkpoint(make_modular(name, tmp_path / name))
    assert (inspection.problems, inspection.conditioning) == ((), conditioning)
    assert inspection.capabilities is not None
    engine = ImageEngine(DEVICE)
    found = await engine.prepare(family_spec(name, tmp_path, conditioning))
    assert (found.names, found.references) == (names.split(), references)
    assert set(found.names) <= set(inspection.capabilities.names)
    engine.close()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["modular-flux3-distilled", "modular-flux2", "modular-klein", "modular-kontext"])
async def test_an_adapter_acts_for_the_call_that_names_it(name: str, tmp_path: Path) -> None:
    skip_without_libraries(name)
    make_modular(name, tmp_path / name)
    (tmp_path / "loras").mkdir()
    plain = family_spec(name, tmp_path, "native")
    layers = layers_of(load_checkpoint(plain, DEVICE).denoiser)
    save(random_pairs(layers, NAMINGS["diffusers"])[0], tmp_path / "loras" / "style.safetensors")
    engine = ImageEngine(DEVICE)
    job = image_job(replace(plain, runtime=Runtime(lora_folder=tmp_path / "loras")), steps=2)
    styled = with_fields(job, loras=(("style", 1.0),))
    before, with_style, after = [(await drawn(engine, each))[0] for each in (job, styled, job)]
    assert np.abs(with_style.astype(int) - before).mean() > 0.1
    assert np.array_equal(before, after)
    engine.close()


@pytest.mark.nightly
async def test_runs_of_a_modular_pipeline_take_turns_and_share_passes(spec_of: SpecOf) -> None:
    engine = ImageEngine(DEVICE)
    jobs = [image_job(spec_of("modular-sd3"), id=f"job {seed}", seed=seed, steps=3 + seed) for seed in (1, 2)]
    alone = [await drawn(engine, job) for job in jobs]
    together = await drawn_together(engine, jobs)
    assert all(isinstance(event, Finished) and event.merged for event in together)
    assert max(difference(event, images) for event, images in zip(together, alone, strict=True)) <= 2
    engine.close()


def test_what_its_index_says_is_found_without_the_library(spec_of: SpecOf) -> None:
    inspection = inspect_checkpoint(spec_of("modular-flux").path)
    assert inspection.problems == ()
    assert inspection.class_name == "FluxModularPipeline"
    assert {part.name for part in inspection.parts} >= {"transformer", "vae", "text_encoder_2", "scheduler"}
    assert inspection.capabilities is not None
    assert inspection.capabilities.names == ["text", "image", "guidance", "steps"]


def test_a_component_of_another_repository_is_looked_for_in_the_folder_and_named(
    spec_of: SpecOf, tmp_path: Path
) -> None:
    spec = spec_of("modular-flux")
    copied = Path(shutil.copytree(spec.path, tmp_path / "copied"))
    shutil.rmtree(copied / "text_encoder_2")
    expected = f"text_encoder_2/ of {REPOSITORY} into {copied / 'text_encoder_2'}/, where it is looked for"
    assert expected in inspect_checkpoint(copied).problems[0]
    with pytest.raises(CheckpointError, match="where it is looked for"):
        load_checkpoint(replace(spec, path=copied), DEVICE)


def test_a_step_whose_parts_the_index_leaves_out_is_left_out(spec_of: SpecOf, tmp_path: Path) -> None:
    """As those of prompt upsamplers, which are models of their own."""
    copied = Path(shutil.copytree(spec_of("modular-flux").path, tmp_path / "copied"))
    file = copied / "modular_model_index.json"
    index = json.loads(file.read_text())
    for part in ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"):
        del index[part]
    file.write_text(json.dumps(index))
    checkpoint = load_checkpoint(replace(spec_of("modular-flux"), path=copied), DEVICE)
    assert "text_encoder" not in checkpoint.pipeline().blocks.sub_blocks
    assert "text_encoder" not in checkpoint.components


def test_a_class_that_draws_videos_is_refused(spec_of: SpecOf, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(spec_of("modular-flux").path, tmp_path / "copied"))
    file = copied / "modular_model_index.json"
    file.write_text(file.read_text().replace("FluxModularPipeline", "WanModularPipeline"))
    assert "WanModularPipeline draws videos" in " ".join(inspect_checkpoint(copied).problems)
