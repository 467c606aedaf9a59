"""What entries of model_index.json are, and what parts need: published layouts that were refused for false reasons."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.checkpoints.classes.index import component_names, is_left_out
from pipelines.checkpoints.classes.source import has_weights
from pipelines.checkpoints.folder import libraries
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.folder.libraries import how_to_install
from pipelines.protocol.images import CheckpointSpec
from pipelines.protocol.machine import ROOT
from tests.support.weight_files import INDEX, flux_folder, inspect_checkpoint


def spec_of(folder: Path) -> CheckpointSpec:
    return CheckpointSpec(folder.name, folder, None, "", "img2img", 1)


def with_part(folder: Path, name: str, entry: Any, **files: Any) -> Path:
    """Like FLUX.1's folder, with one more entry in its index, and its files."""
    flux_folder(folder, index={**INDEX, name: entry})
    if files:
        (folder / name).mkdir()
    for file, content in files.items():
        (folder / name / f"{file}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("name", "entry", "files"),
    [
        ("guider", ["diffusers", "AdaptiveProjectedMixGuidance"], {"guider_config": {}}),
        ("ocr_guider", ["diffusers", "ClassifierFreeGuidance"], {"guider_config": {}}),
        ("image_processor", ["diffusers", "PixArtImageProcessor"], {"preprocessor_config": {}}),
        ("feature_extractor", ["transformers", "CLIPImageProcessor"], {"preprocessor_config": {}, "config": {}}),
        ("low_res_scheduler", ["diffusers", "DDPMScheduler"], {"scheduler_config": {}}),
        ("watermarker", ["deepfloyd_if", "IFWatermarker"], {"settings": {}}),
    ],
)
def test_parts_without_weights_need_none(tmp_path: Path, name: str, entry: list[str], files: dict[str, Any]) -> None:
    folder = with_part(tmp_path / "x", name, entry, **files)
    assert inspect_checkpoint(folder).problems == ()
    assert name not in CheckpointFiles.of(spec_of(folder)).weights


@pytest.mark.parametrize(
    ("entry", "files", "problem"),
    [
        (["diffusers", "AutoencoderTiny"], {"config": {}}, "no weights"),
        (["transformers", "CLIPVisionModelWithProjection"], {"notes": {}}, "config.json: missing"),
        (["stable_diffusion", "StableDiffusionSafetyChecker"], {"config": {}}, "no weights"),
    ],
)
def test_models_need_their_config_and_weights(tmp_path: Path, entry: list[str], files: Any, problem: str) -> None:
    folder = with_part(tmp_path / "x", "extra", entry, **files)
    assert problem in "; ".join(inspect_checkpoint(folder).problems)


def test_a_part_without_any_file_is_a_download_that_is_not_whole(tmp_path: Path) -> None:
    folder = with_part(tmp_path / "x", "guider", ["diffusers", "ClassifierFreeGuidance"])
    (folder / "guider").mkdir()
    assert inspect_checkpoint(folder).problems == (
        f"{folder / 'guider'}: empty, so the download or the copy is not whole",
    )


@pytest.mark.parametrize(
    "setting",
    [[2, 5, 8], ["mid", "down.block_1"], [1.0, 0.5], [[1, 2], [3]], [], ["mid"], True, None, "text", {"a": 1}],
    ids=str,
)
def test_settings_are_no_components(tmp_path: Path, setting: Any) -> None:
    """Krea 2's `text_encoder_select_layers`, `sample_sigmas`, the layers of PAG."""
    folder = with_part(tmp_path / "x", "text_encoder_select_layers", setting)
    assert inspect_checkpoint(folder).problems == ()
    assert "text_encoder_select_layers" not in component_names(json.loads((folder / "model_index.json").read_text()))


def test_a_component_that_is_left_out_is_none(tmp_path: Path) -> None:
    folder = with_part(tmp_path / "x", "image_encoder", [None, None])
    assert inspect_checkpoint(folder).problems == ()
    assert [is_left_out(entry) for entry in ([None, None], ["diffusers", None], ["diffusers", "X"])] == [
        True,
        True,
        False,
    ]


def test_a_null_in_place_of_a_component_is_named_with_what_to_write(tmp_path: Path) -> None:
    """Diffusers ends in a TypeError at it."""
    folder = with_part(tmp_path / "x", "image_encoder", None)
    assert inspect_checkpoint(folder).problems == (
        f"{folder}/model_index.json: image_encoder is null, which diffusers does not read: write [null, null]",
    )


def test_models_are_known_by_the_library_that_has_them() -> None:
    known = [has_weights("diffusers", name) for name in ("AutoencoderKL", "FluxTransformer2DModel", "DDIMScheduler")]
    assert known == [True, True, False]
    assert [has_weights("transformers", name) for name in ("T5EncoderModel", "T5TokenizerFast")] == [True, False]
    assert has_weights("stable_diffusion", "StableDiffusionSafetyChecker") is None


def quantized(folder: Path, **config: Any) -> Path:
    return flux_folder(folder, transformer={"quantization_config": config})


@pytest.mark.parametrize(
    ("method", "library"),
    [
        ("sdnq", "sdnq"), ("quanto", "optimum-quanto"), ("modelopt", "nvidia-modelopt"), ("auto-round", "auto-round"),
        ("torchao", "torchao"), ("bitsandbytes", "bitsandbytes"),
    ],
)  # fmt: skip
def test_the_library_of_a_quantized_part_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, library: str
) -> None:
    monkeypatch.setattr(libraries, "is_installed", lambda _: False)
    inspection = inspect_checkpoint(quantized(tmp_path / "x", quant_method=method))
    assert (inspection.problems, inspection.needs) == ((), (library,))
    assert how_to_install(inspection.needs).endswith(f"-m pip install --constraint {ROOT}/constraints.txt {library}")


def test_four_bits_without_a_name_are_of_bitsandbytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "is_installed", lambda _: False)
    assert inspect_checkpoint(quantized(tmp_path / "x", load_in_4bit=True)).needs == ("bitsandbytes",)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("nunchaku_lite", "code that is downloaded from a hub and run, and nothing here does that; GPUs of the Hopper"),
        ("magic", "quantized by magic, which the installed diffusers does not load"),
        ("bfl", "quantized by bfl, which the installed diffusers reads from single files alone"),
    ],
)
def test_methods_that_nothing_here_loads_are_refused_when_it_is_inspected(
    tmp_path: Path, method: str, message: str
) -> None:
    assert message in "; ".join(inspect_checkpoint(quantized(tmp_path / "x", quant_method=method)).problems)


def test_extras_and_packages_are_installed_each_by_a_command() -> None:
    command = how_to_install(["torchvision", "sentencepiece", "sdnq", "gguf"])
    pip = f"{sys.executable} -m pip install --constraint {ROOT}/constraints.txt sdnq"
    assert command == f"make install EXTRAS=vision,gguf; and {pip}"
