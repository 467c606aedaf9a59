"""What one file says of how it is drawn: in the reports, in the catalog files that are written, and in the refusals."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipelines.checkpoints.folder.folder import CheckpointFolder
from pipelines.checkpoints.inspection.beside_folders import find_bases
from pipelines.checkpoints.inspection.suggestion import suggest, suggested_spec
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.work.estimate import weights_key
from server.catalog.images import Catalog, CatalogError, load_catalog
from server.errors import BadRequest
from server.flows.catalog.edit import edited_text
from server.flows.operators.checkpoints import CheckpointManager
from server.schemas.checkpoints import report_of
from tests.support.weight_files import INDEX, denoiser_file, flux_folder, inspect_checkpoint, sd_folder
from tests.unit.catalog.test_checkpoint_manager import run

ZERO_SNR = {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
EMPTY = np.zeros(0, np.float32)
V_PRED = {"v_pred": EMPTY, "ztsnr": EMPTY}
DENOISER = "model.diffusion_model."


@pytest.fixture(autouse=True)
def folder_of_another_family(folders: tuple[Path, Path]) -> None:
    sd_folder(folders[1] / "sd")


def unet(file: Path, marks: Mapping[str, Any] | None = None, metadata: dict[str, str] | None = None) -> Path:
    """A denoiser of 1000 weights, and what else is in its file."""
    save_file({"input_blocks.0.weight": np.zeros((100, 10), np.float16), **(marks or {})}, file, metadata)
    return file


def catalog_of(folders: tuple[Path, Path]) -> Catalog:
    return load_catalog(*folders)


def test_add_writes_what_the_file_says(manager: CheckpointManager, folders: tuple[Path, Path]) -> None:
    unet(folders[1] / "noob.safetensors", V_PRED)
    added = manager.add("noob.safetensors")
    written = 'prediction_type = "v_prediction", rescale_betas_zero_snr = true, timestep_spacing = "trailing"'
    assert f"scheduler_config = {{ {written} }}  # v_pred and ztsnr" in added.text
    spec = catalog_of(folders).models["noob"].checkpoint
    assert (spec.sampling.scheduler, dict(spec.sampling.scheduler_config)) == (None, ZERO_SNR)
    assert hash(spec) == hash(catalog_of(folders).models["noob"].checkpoint)
    inspection, suggestion = manager.inspect("noob.safetensors")
    drawn = suggested_spec("noob", inspection, suggestion).sampling
    assert drawn.scheduler_config == spec.sampling.scheduler_config, "a sheet is drawn so too"


def test_inspect_shows_what_the_file_says(
    monkeypatch: pytest.MonkeyPatch, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str],
    manager: CheckpointManager,
) -> None:  # fmt: skip
    unet(folders[1] / "noob.safetensors", V_PRED)
    report = report_of(*manager.inspect("noob.safetensors"))
    assert report.noise.model_dump() == {"scheduler": None, "scheduler_config": ZERO_SNR, "found": "v_pred and ztsnr"}
    assert run(monkeypatch, folders, "inspect", "noob.safetensors") == 0
    shown = capsys.readouterr().out
    assert "prediction_type v_prediction  (v_pred and ztsnr)" in shown
    assert "timestep_spacing trailing" in shown


def test_a_scheduler_that_can_is_suggested_for_one_that_cannot(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    shutil.rmtree(folders[1] / "sd")
    sd_folder(folders[1] / "sd", "PNDMScheduler", skip_prk_steps=True)
    unet(folders[1] / "noob.safetensors", V_PRED)
    _, suggestion = manager.inspect("noob.safetensors")
    assert (suggestion.noise.scheduler, dict(suggestion.noise.config)) == ("EulerDiscreteScheduler", ZERO_SNR)
    unet(folders[1] / "v.safetensors", {}, {"modelspec.prediction_type": "v"})
    _, suggestion = manager.inspect("v.safetensors")
    assert (suggestion.noise.scheduler, dict(suggestion.noise.config)) == (None, {"prediction_type": "v_prediction"})


def test_what_the_folder_says_already_is_not_said_again(tmp_path: Path) -> None:
    folder = sd_folder(tmp_path / "noob", prediction_type="v_prediction", rescale_betas_zero_snr=True)
    said = inspect_checkpoint(unet(tmp_path / "tuned.safetensors", V_PRED), folder).file_sampling
    assert (said.config, said.found) == ((), "")


def test_cosxl_gets_the_scheduler_of_edm_with_its_sigmas(tmp_path: Path) -> None:
    sigmas = {"edm_vpred.sigma_max": np.float16(120), "edm_vpred.sigma_min": np.float32(0.002)}
    marks = {name: np.array(value) for name, value in sigmas.items()}
    found = inspect_checkpoint(unet(tmp_path / "cosxl.safetensors", marks), sd_folder(tmp_path / "sd"))
    assert (found.problems, found.file_sampling.scheduler) == ((), "EDMEulerScheduler")
    assert dict(found.file_sampling.config) == {
        "prediction_type": "v_prediction", "sigma_data": 1.0, "sigma_max": 120.0, "sigma_min": 0.002,
        "sigma_schedule": "exponential",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("flux1-kontext-dev", "FluxKontextPipeline"),
        ("flux1-dev-Kontext_fp8", "FluxKontextPipeline"),
        ("flux1-dev", None),
        ("fluxInpaint", None),  # it draws with the same weights
    ],
)
def test_a_name_of_another_pipeline_is_told(tmp_path: Path, name: str, other: str | None) -> None:
    """Kontext's denoiser has the shapes of FLUX.1 [dev]'s, which draws something else with it."""
    file = denoiser_file(tmp_path / f"{name}.safetensors")
    found = inspect_checkpoint(file, flux_folder(tmp_path / "flux"))
    told = f"its name is that of a {other}, and flux draws as a FluxPipeline: check it"
    assert (found.problems, found.notes) == ((), (told,) if other else ())


def test_a_flow_has_one_prediction(tmp_path: Path) -> None:
    base = flux_folder(tmp_path / "flux")
    for text, problems, notes in (("v", 0, 0), ("flow matching", 0, 0), ("epsilon", 0, 1), ("sample", 1, 0)):
        file = unet(tmp_path / f"{text}.safetensors", {}, {"modelspec.prediction_type": text})
        found = inspect_checkpoint(file, base)
        assert (len(found.problems), len(found.notes), found.file_sampling.config) == (problems, notes, ()), text
    marked = inspect_checkpoint(unet(tmp_path / "marked.safetensors", V_PRED), base)
    assert "v_pred: FlowMatchEulerDiscreteScheduler follows a flow, which has no such prediction" in marked.problems[0]


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({"edm_mean": np.zeros(4, np.float32), "edm_std": np.ones(4, np.float32)}, "edm_mean, edm_std: it was trained"),
        ({"__x0__": EMPTY}, "the tensor __x0__ says something of the file that is not known here"),
        (
            {"a.weight_scale": np.ones(1, np.float32), "a.weight": np.zeros((2, 2), np.uint8)},
            "a.weight_scale .* nothing here",
        ),
        ({"a.comfy_quant": np.frombuffer(b'{"format": "nvfp4"}', np.uint8)}, "nvfp4 is not supported"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_it_is_added(
    manager: CheckpointManager, folders: tuple[Path, Path], marks: Mapping[str, Any], message: str
) -> None:
    unet(folders[1] / "tuned.safetensors", marks)
    inspection, _ = manager.inspect("tuned.safetensors", "sd")
    assert len(inspection.problems) == 1
    with pytest.raises(BadRequest, match=message):
        manager.add("tuned.safetensors", base="sd")
    assert "tuned" not in catalog_of(folders).models


def test_a_swap_changes_what_the_files_say_and_keeps_what_the_operator_says(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    unet(folders[1] / "eps.safetensors")
    unet(folders[1] / "noob.safetensors", V_PRED)
    source = manager.add("eps.safetensors", name="mine").file
    key = "sampling.scheduler_config"
    own: dict[str, Any] = {}

    def swap(checkpoint: str) -> dict[str, Any]:
        changes = manager.fit(catalog_of(folders).models["mine"], checkpoint)
        source.write_text(edited_text(source.read_text(), checkpoint, changes))
        spec = catalog_of(folders).models["mine"].checkpoint
        settings = {change.key: change.new for change in changes}
        assert spec.path == folders[1] / checkpoint
        assert dict(spec.sampling.scheduler_config) == (settings.get(key, own) or {})
        return settings

    assert swap("noob.safetensors") == {key: ZERO_SNR}
    assert "scheduler_config = {prediction_type" in source.read_text()
    assert swap("eps.safetensors") == {key: None}
    assert "scheduler_config" not in source.read_text()
    own["use_karras_sigmas"] = True
    source.write_text(
        source.read_text().replace("[sampling]", "[sampling]\nscheduler_config = { use_karras_sigmas = true }")
    )
    assert swap("noob.safetensors") == {key: ZERO_SNR | own}
    assert swap("eps.safetensors") == {key: own}


@pytest.mark.parametrize(
    ("name", "steps", "guidance", "scheduler", "config"),
    [
        ("sdxl_lightning_4step_unet", 4, 1.0, None, {"timestep_spacing": "trailing"}),
        ("Hyper-SDXL-8steps", 8, 1.0, None, {"timestep_spacing": "trailing"}),
        ("turbovisionXL", 50, 7.5, None, {}),
        ("sd_xl_turbo_1.0_fp16", 4, 1.0, None, {"timestep_spacing": "trailing"}),
        ("dreamshaperXL_lightningDPMSDE", 4, 1.0, None, {"timestep_spacing": "trailing"}),
        ("dreamshaper_8LCM", 4, 1.0, "LCMScheduler", {}),
        ("dmd2_sdxl_4step_unet", 4, 1.0, "LCMScheduler", {}),
        ("hyper_realism_v3", 50, 7.5, None, {}),
        ("noobaiXLNAIXL_vPred10Version", 50, 7.5, None, {"prediction_type": "v_prediction"}),
        ("dreamshaper_v8", 50, 7.5, None, {}),
    ],
)
def test_names_suggest_and_say_that_they_do(
    tmp_path: Path, name: str, steps: int, guidance: float, scheduler: str | None, config: Mapping[str, Any]
) -> None:
    folder = sd_folder(tmp_path / "sd")
    found = suggest(inspect_checkpoint(unet(tmp_path / f"{name}.safetensors"), folder))
    assert (found.steps.value, found.guidance.value) == (steps, guidance)
    assert (found.noise.scheduler, dict(found.noise.config)) == (scheduler, config)
    assert found.noise.found.endswith("check it") == bool(scheduler or config)
    renamed = suggest(inspect_checkpoint(folder.rename(tmp_path / name)))
    assert (renamed.steps.value, renamed.noise.config) == (steps, ()), "a folder has a scheduler of its own"
    folder = (tmp_path / name).rename(folder)
    if steps < 50:
        (folder / "README.md").write_text("pipe(prompt, num_inference_steps=30, guidance_scale=7.0)")
        again = suggest(inspect_checkpoint(tmp_path / f"{name}.safetensors", folder))
        assert again.steps == found.steps, "the base's card is of a slower one"


def test_the_resolution_of_training_is_the_native_area(tmp_path: Path) -> None:
    file = unet(tmp_path / "tuned.safetensors", {}, {"modelspec.resolution": "768x704"})
    found = suggest(inspect_checkpoint(file, sd_folder(tmp_path / "sd"))).native_area_px
    assert (found.value, found.found) == (768 * 704, "modelspec.resolution in the file")


def test_a_flow_that_is_distilled_has_no_spacing(tmp_path: Path) -> None:
    file = unet(tmp_path / "flux1-schnell-4steps.safetensors")
    found = suggest(inspect_checkpoint(file, flux_folder(tmp_path / "flux")))
    assert (found.steps.value, found.noise.config, found.noise.found) == (4, (), "")


def scaled(file: Path, more: Mapping[str, Any] | None = None) -> Path:
    """A denoiser of 1000 weights as ComfyUI scales it."""
    layer = f"{DENOISER}blocks.0"
    tensors = {
        f"{layer}.weight": np.zeros((100, 10), np.int8),
        f"{layer}.weight_scale": np.ones((100, 1), np.float32),
        f"{layer}.comfy_quant": np.frombuffer(b'{"format": "int8_tensorwise"}', np.uint8),
    }
    save_file({**tensors, **(more or {})}, file)
    return file


@pytest.mark.parametrize("more", [{}, {f"{DENOISER}norm_final.weight": np.ones(7, np.float32)}, {"v_pred": EMPTY}])
def test_the_base_is_found_beside_scales_and_what_nothing_uses(tmp_path: Path, more: Mapping[str, Any]) -> None:
    folder, other = sd_folder(tmp_path / "sd"), sd_folder(tmp_path / "other")
    save_file({"weight": np.zeros(2000, np.float16)}, other / "unet" / "diffusion_pytorch_model.safetensors")
    file = WeightFile(scaled(tmp_path / "x.safetensors", more))
    found = find_bases(file, [CheckpointFolder(other), CheckpointFolder(folder)])
    assert [each.path for each in found] == [folder]


def test_the_nearest_folder_is_named_if_none_fits(manager: CheckpointManager, folders: tuple[Path, Path]) -> None:
    unet(folders[1] / "more.safetensors", {"input_blocks.1.weight": np.zeros((3, 9), np.float16)})
    inspection, _ = manager.inspect("more.safetensors")
    assert inspection.problems[-1] == (
        "the nearest folder here is sd, whose denoiser has 1,000 weights; the file's has 1,027. Name it if they go "
        "together"
    )
    unet(folders[1] / "other.safetensors", {"input_blocks.1.weight": np.zeros((300, 90), np.float16)})
    assert "the nearest folder" not in " ".join(manager.inspect("other.safetensors")[0].problems)


def all_in_one(file: Path, encoder: str) -> Path:
    tensors = {f"{DENOISER}a.weight": (1000,), f"text_encoders.{encoder}.a.weight": (100,), "vae.a.weight": (10,)}
    save_file({name: np.zeros(shape, np.float16) for name, shape in tensors.items()}, file)
    return file


@pytest.mark.parametrize(
    ("class_name", "encoder", "key", "notes"),
    [
        (
            "QwenImagePipeline",
            "qwen25_7b",
            "base",
            ("its text_encoders.* and vae.* are not used, but the parts of aio",),
        ),
        ("FluxPipeline", "clip_l", "config", ()),
        ("ZImagePipeline", "qwen3_4b", "config", ("its text_encoders.* are not used, but the parts of aio",)),
    ],
)
def test_an_all_in_one_file_goes_with_its_folder_as_its_class_can(
    manager: CheckpointManager,
    folders: tuple[Path, Path],
    class_name: str,
    encoder: str,
    key: str,
    notes: tuple[str, ...],
) -> None:
    shutil.rmtree(folders[1] / "sd")
    encoder_class = "CLIPTextModel" if encoder == "clip_l" else "Qwen3Model"
    index = {**INDEX, "_class_name": class_name, "text_encoder": ["transformers", encoder_class]}
    flux_folder(folders[1] / "aio", index=index)
    all_in_one(folders[1] / "rapid.safetensors", encoder)
    inspection, _ = manager.inspect("rapid.safetensors")
    assert (inspection.problems, inspection.notes) == ((), notes)
    assert getattr(inspection, key) == folders[1] / "aio"
    added = manager.add("rapid.safetensors")
    assert getattr(catalog_of(folders).models["rapid"].checkpoint, key) == folders[1] / "aio"
    assert added.text.startswith("# Its text_encoders.*" if notes else "# Values")
    if key == "base":
        problem = manager.inspect("rapid.safetensors", config="aio")[0].problems[0]
        assert "QwenImagePipeline can't be loaded from a single file; with aio as `base` its denoiser can" in problem


def test_a_file_without_a_codec_is_no_denoiser_alone(manager: CheckpointManager, folders: tuple[Path, Path]) -> None:
    tensors = {f"{DENOISER}a.weight": np.zeros(1000, np.float16), "cond_stage_model.a.weight": np.ones(100, np.float16)}
    save_file(tensors, folders[1] / "no-vae.safetensors")
    inspection, _ = manager.inspect("no-vae.safetensors")
    assert (inspection.config, inspection.base, inspection.problems) == (folders[1] / "sd", None, ())
    assert [(part.name, part.weights) for part in inspection.parts] == [("all components", 1100), ("vae", 10)]
    for weights in (folders[1] / "sd" / "vae").glob("*.safetensors"):
        weights.unlink()
    with pytest.raises(BadRequest, match=r"no-vae.safetensors has no vae; .*sd/vae: no weights"):
        manager.add("no-vae.safetensors")


@pytest.mark.parametrize("value", [math.inf, [1, 2], {"a": 1}])
def test_a_scheduler_config_has_plain_values(
    folders: tuple[Path, Path], manager: CheckpointManager, value: Any
) -> None:
    source = manager.add("sd").file
    text = {"inf": "inf"}.get(str(value)) or json.dumps(value).replace(":", " =")
    source.write_text(
        source.read_text().replace("[sampling]", f"[sampling]\nscheduler_config = {{ sigma_max = {text} }}")
    )
    with pytest.raises(
        CatalogError, match=r"scheduler_config.sigma_max: got .*, expected text in quotes, a number, true or"
    ):
        catalog_of(folders)


def test_specs_that_differ_in_it_share_their_weights(folders: tuple[Path, Path], manager: CheckpointManager) -> None:
    manager.add("sd")
    spec = catalog_of(folders).models["sd"].checkpoint
    other = replace(spec, sampling=replace(spec.sampling, scheduler_config=(("prediction_type", "v_prediction"),)))
    assert spec != other
    assert weights_key(spec) == weights_key(other)
