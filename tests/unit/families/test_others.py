"""Families with one thing to be said of each."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.checkpoints.classes.source import PipelineSource
from pipelines.checkpoints.inspection.hints import read_name_hints
from pipelines.families.registry import family_of
from tests.support.weight_files import flux_folder, inspect_checkpoint


def test_sides_of_glm_image_are_multiples_of_its_tokens() -> None:
    pipeline = SimpleNamespace(vae_scale_factor=8, transformer=SimpleNamespace(config=SimpleNamespace(patch_size=2)))
    assert family_of("GlmImagePipeline").size_multiple(pipeline) == 32


def test_fibos_edits_keep_the_sizes_of_references() -> None:
    family, call = family_of("BriaFiboEditPipeline"), PipelineSource().parameters("BriaFiboEditPipeline") or {}
    assert family.reads_any_size
    assert family.size_arguments(64, 32).keys() <= call.keys()
    assert not family_of("BriaFiboPipeline").reads_any_size


def test_hidream_shares_no_pass() -> None:
    assert family_of("HiDreamImagePipeline").separate_passes == "its rows differ from what they are alone"
    assert family_of("SanaPipeline").separate_passes is None


def test_a_weight_of_z_images_files_is_not_needed() -> None:
    assert family_of("ZImagePipeline").unneeded_weights == {"ZImageTransformer2DModel": r"^norm_final\.weight$"}


@pytest.mark.parametrize(
    ("architecture", "predicts_v"),
    [("stable-diffusion-v2-768-v", True), ("stable-diffusion-v2-512", False), ("stable-diffusion-xl-v1-base", False)],
)
def test_stable_diffusion_2_says_what_it_predicts(architecture: str, predicts_v: bool) -> None:
    assert family_of("StableDiffusionPipeline").predicts_v(architecture) is predicts_v


@pytest.mark.parametrize(
    ("name", "distilled"),
    [
        ("flux1-schnell", "schnell"),
        ("Hyper-SDXL-8steps", "hyper"),
        ("hyper-flux", "hyper"),
        ("hyperrealism", None),
        ("hyper-real", None),
    ],
)
def test_names_of_families_say_what_is_distilled(name: str, distilled: str | None) -> None:
    assert read_name_hints(name).distilled == distilled


@pytest.mark.parametrize(
    ("class_name", "library"),
    [("PRXPipeline", "ftfy"), ("PRXPixelPipeline", "ftfy"), ("OmniGenPipeline", "torchvision")],
)
def test_a_library_that_a_class_needs_is_named_before_it_is_loaded(
    tmp_path: Path, class_name: str, library: str
) -> None:
    folder = flux_folder(tmp_path / "checkpoint")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"_class_name": class_name}))
    needs = inspect_checkpoint(folder).needs
    assert (library in needs) == (importlib.util.find_spec(library) is None)
    assert family_of(class_name).libraries == (library,)
