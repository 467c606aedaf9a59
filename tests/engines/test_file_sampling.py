"""Single files that say how they are sampled: they are drawn so, with and without a catalog file that says it too."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.memory.device_bytes import estimate_bytes
from pipelines.images.denoising.noise_schedulers import new_scheduler
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.images.warmup.check_records import describe
from pipelines.protocol.images import CheckpointSpec, SamplingDefaults
from tests.engines.device import DEVICE
from tests.support.image_jobs import image_job
from tests.support.tiny_checkpoints import make_single_file, original_unet_name
from tests.support.tiny_families import make_family
from tests.support.tiny_families.unets import BETAS

V = {"prediction_type": "v_prediction"}
ZERO_SNR = {**V, "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
COSXL = {
    "_class_name": "EDMEulerScheduler", "prediction_type": "v_prediction", "sigma_data": 1.0, "sigma_max": 90.0,
    "sigma_min": 0.002, "sigma_schedule": "exponential",
}  # fmt: skip
EMPTY = torch.empty(0)
Pixels = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Stable Diffusion in one file, and a folder with the same weights, whose scheduler predicts epsilon."""
    file, configs = make_single_file(tmp_path_factory.mktemp("whole"), keep_weights=True)
    (configs / "scheduler" / "scheduler_config.json").unlink()
    return file, edited(
        configs, file.parent / "sd", {"_class_name": "EulerDiscreteScheduler", **BETAS, "steps_offset": 1}
    )


@pytest.fixture(scope="module")
def sd15(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose PNDM scheduler has no zero terminal SNR."""
    return make_family("sd15", tmp_path_factory.mktemp("sd15") / "sd15")


def spec_of(path: Path, *, config: Path | None = None, base: Path | None = None, **sampling: Any) -> CheckpointSpec:
    return CheckpointSpec(
        name=path.stem, path=path, config=config, base=base, family="alpha", conditioning="img2img", max_references=1,
        native_area_px=64 * 64, max_area_px=96 * 96, sampling=SamplingDefaults(guidance=2.0, **sampling),
    )  # fmt: skip


def config_of(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(values.items()))


def draw(spec: CheckpointSpec, checkpoint: Checkpoint | None = None) -> Pixels:
    row = Row(image_job(spec), 0, 0.0)
    checkpoint = checkpoint or load_checkpoint(spec, DEVICE)
    return ImagePipeline(checkpoint, row, lambda _: None, PreviewMap()).generate().astype(int)


def with_marks(source: Path, path: Path, marks: Mapping[str, torch.Tensor], **metadata: str) -> Path:
    save_file({**load_file(source), **marks}, path, {key.replace("__", "."): text for key, text in metadata.items()})
    return path


def edited(folder: Path, copy: Path, values: Mapping[str, Any]) -> Path:
    """The folder with other values in its scheduler's config, of another class if they name one."""
    shutil.copytree(folder, copy)
    file = copy / "scheduler" / "scheduler_config.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**before, **values}))
    index = json.loads((copy / "model_index.json").read_text())
    index["scheduler"][1] = values.get("_class_name", index["scheduler"][1])
    (copy / "model_index.json").write_text(json.dumps(index))
    return copy


SAYINGS: list[tuple[dict[str, torch.Tensor], dict[str, str], Mapping[str, Any]]] = [
    ({"v_pred": EMPTY, "ztsnr": EMPTY}, {}, ZERO_SNR),
    ({"v_pred": EMPTY}, {}, V),
    ({"v_pred": EMPTY}, {"modelspec__prediction_type": "epsilon"}, V),
    ({}, {"modelspec__prediction_type": "v"}, V),
    ({}, {"modelspec__predict_key": "v"}, V),
    ({}, {"ss_v_parameterization": "True", "ss_zero_terminal_snr": "True"}, ZERO_SNR),
    ({"edm_vpred.sigma_max": torch.tensor(90.0), "edm_vpred.sigma_min": torch.tensor(0.002)}, {}, COSXL),
]


@pytest.mark.daily("marks0-*", "marks3-*", "marks6-*")
@pytest.mark.parametrize(("marks", "metadata", "values"), SAYINGS)
def test_a_file_is_drawn_as_it_says(
    whole: tuple[Path, Path], tmp_path: Path, marks: dict[str, torch.Tensor], metadata: dict[str, str],
    values: Mapping[str, Any],
) -> None:  # fmt: skip
    file, folder = whole
    truth = draw(spec_of(edited(folder, tmp_path / "truth", values)))
    assert np.abs(truth - draw(spec_of(folder))).mean() > 3, "or nothing is tested"
    spec = spec_of(with_marks(file, tmp_path / "said.safetensors", marks, **metadata), config=folder)
    checkpoint = load_checkpoint(spec, DEVICE)
    assert np.array_equal(draw(spec, checkpoint), truth)
    assert "the file says" in checkpoint.notes[0]
    assert "v_prediction" in checkpoint.notes[0]


@pytest.mark.parametrize("metadata", [{}, {"modelspec__prediction_type": "epsilon"}])
def test_a_file_of_epsilon_is_drawn_as_before(whole: tuple[Path, Path], tmp_path: Path, metadata: Any) -> None:
    file, folder = whole
    spec = spec_of(with_marks(file, tmp_path / "plain.safetensors", {}, **metadata), config=folder)
    checkpoint = load_checkpoint(spec, DEVICE)
    assert np.array_equal(draw(spec, checkpoint), draw(spec_of(folder)))
    assert checkpoint.notes == ()


@pytest.mark.nightly
def test_a_file_of_epsilon_is_not_drawn_as_its_folders_v_prediction(whole: tuple[Path, Path], tmp_path: Path) -> None:
    folder = edited(whole[1], tmp_path / "noob", {**V, "rescale_betas_zero_snr": True})
    file = with_marks(whole[0], tmp_path / "eps.safetensors", {}, modelspec__prediction_type="epsilon")
    assert np.array_equal(draw(spec_of(file, config=folder)), draw(spec_of(whole[1])))


def unet_alone(base: Path, path: Path, marks: Mapping[str, torch.Tensor], prefix: str = "") -> Path:
    weights = load_file(base / "unet" / "diffusion_pytorch_model.safetensors")
    save_file({**{prefix + original_unet_name(name): weight for name, weight in weights.items()}, **marks}, path)
    return path


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_a_unet_alone_is_drawn_as_it_says_by_a_scheduler_that_can(sd15: Path, tmp_path: Path, prefix: str) -> None:
    file = unet_alone(sd15, tmp_path / "unet.safetensors", {"v_pred": EMPTY, "ztsnr": EMPTY}, prefix)
    truth = edited(sd15, tmp_path / "truth", {**ZERO_SNR, "_class_name": "EulerDiscreteScheduler"})
    spec = spec_of(file, base=sd15)
    checkpoint = load_checkpoint(spec, DEVICE)
    assert np.array_equal(draw(spec, checkpoint), draw(spec_of(truth)))
    assert "EulerDiscreteScheduler with prediction_type = v_prediction" in checkpoint.notes[0]


def test_the_catalog_files_word_is_the_last(whole: tuple[Path, Path], tmp_path: Path) -> None:
    file = with_marks(whole[0], tmp_path / "said.safetensors", {"v_pred": EMPTY})
    by_catalog = spec_of(file, config=whole[1], scheduler_config=config_of({"prediction_type": "epsilon"}))
    assert np.array_equal(draw(by_catalog), draw(spec_of(whole[1])))
    of_folder = spec_of(whole[1], scheduler_config=config_of(ZERO_SNR))
    assert np.array_equal(draw(of_folder), draw(spec_of(edited(whole[1], tmp_path / "truth", ZERO_SNR))))


REFUSED: list[tuple[dict[str, torch.Tensor], dict[str, str], str]] = [
    ({"edm_mean": torch.zeros(4), "edm_std": torch.ones(4)}, {}, "edm_mean, edm_std: .* the folder of Playground 2.5"),
    ({"x0_pred": EMPTY}, {}, "the tensor x0_pred says something of the file that is not known here"),
    (
        {},
        {"modelspec__prediction_type": "flow"},
        "modelspec.prediction_type = flow: .*Scheduler has no such prediction",
    ),
]


@pytest.mark.parametrize(("marks", "metadata", "message"), REFUSED)
def test_what_cannot_be_followed_is_refused_by_name(
    whole: tuple[Path, Path], tmp_path: Path, marks: dict[str, torch.Tensor], metadata: dict[str, str], message: str
) -> None:
    file = with_marks(whole[0], tmp_path / "said.safetensors", marks, **metadata)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(spec_of(file, config=whole[1]), DEVICE)


def test_latents_of_edm_are_those_of_its_folder(whole: tuple[Path, Path], tmp_path: Path) -> None:
    folder = edited(whole[1], tmp_path / "playground", {"_class_name": "EDMDPMSolverMultistepScheduler"})
    codec = folder / "vae" / "config.json"
    numbers = {"latents_mean": [-1.6, 1.1, 0.5, -0.4], "latents_std": [8.4, 6.4, 4.9, 5.2]}
    codec.write_text(json.dumps({**json.loads(codec.read_text()), **numbers}))
    marks = {
        "edm_mean": torch.tensor(numbers["latents_mean"]).reshape(1, 4, 1, 1),
        "edm_std": torch.tensor([8.4, 6.4, 4.9, 5.2]),
    }
    spec = spec_of(with_marks(whole[0], tmp_path / "ok.safetensors", marks), config=folder)
    assert type(load_checkpoint(spec, DEVICE).components["scheduler"]).__name__ == "EDMDPMSolverMultistepScheduler"
    other = {**marks, "edm_mean": torch.zeros(4)}
    with pytest.raises(CheckpointError, match="edm_mean, edm_std"):
        load_checkpoint(spec_of(with_marks(whole[0], tmp_path / "no.safetensors", other), config=folder), DEVICE)


@pytest.mark.daily("values0-*")
@pytest.mark.parametrize(
    ("values", "scheduler", "message"),
    [
        (
            {"foo": 1},
            None,
            r"scheduler_config.foo: EulerDiscreteScheduler takes no such key; it takes num_train_timesteps",
        ),
        ({"timestep_spacing": "ending"}, None, r"config.timestep_spacing: got 'ending', but .* takes 'linspace' or"),
        (
            {"rescale_betas_zero_snr": "yes"},
            None,
            r"config.rescale_betas_zero_snr: got 'yes', but .* takes true or false",
        ),
        ({"beta_end": "big"}, None, r"config.beta_end: got 'big', but .* takes a number"),
        (
            {"beta_schedule": "cubic"},
            None,
            r"scheduler_config: EulerDiscreteScheduler refuses beta_schedule = 'cubic': ",
        ),
        ({"rescale_betas_zero_snr": True}, "PNDMScheduler", r"rescale_betas_zero_snr: PNDMScheduler takes no such key"),
    ],
)
async def test_a_scheduler_config_that_cannot_be_followed_is_named(
    whole: tuple[Path, Path], values: Mapping[str, Any], scheduler: str | None, message: str
) -> None:
    spec = spec_of(whole[1], scheduler=scheduler, scheduler_config=config_of(values))
    with pytest.raises(CheckpointError, match=r"^sampling.*" + message):
        await ImageEngine(DEVICE).prepare(spec)


async def test_a_value_that_fails_in_the_first_step_is_named(whole: tuple[Path, Path]) -> None:
    values = config_of({"prediction_type": "score"})
    with pytest.raises(
        CheckpointError, match=r"^sampling.scheduler_config: EulerDiscreteScheduler refuses pred.*'score'"
    ):
        await ImageEngine(DEVICE).prepare(spec_of(whole[1], scheduler_config=values))


@pytest.mark.parametrize(
    ("values", "scheduler", "message"),
    [
        (ZERO_SNR, "PNDMScheduler", "PNDMScheduler has no rescale_betas_zero_snr = True, as the checkpoint needs"),
        (COSXL, "DDIMScheduler", "DDIMScheduler would draw something else: .* takes EDMEulerScheduler"),
    ],
)
def test_another_scheduler_must_be_able_to_follow_the_checkpoint(
    whole: tuple[Path, Path], tmp_path: Path, values: Mapping[str, Any], scheduler: str, message: str
) -> None:
    original = load_checkpoint(spec_of(edited(whole[1], tmp_path / "said", values)), DEVICE).components["scheduler"]
    with pytest.raises(CheckpointError, match=message):
        new_scheduler(original, SamplingDefaults(scheduler=scheduler))


async def test_a_scheduler_that_requests_may_choose_is_withdrawn_with_the_reason(
    whole: tuple[Path, Path], tmp_path: Path
) -> None:
    file = with_marks(whole[0], tmp_path / "noob.safetensors", {"v_pred": EMPTY, "ztsnr": EMPTY})
    able, unable = "DPMSolverMultistepScheduler", "PNDMScheduler"
    found = await ImageEngine(DEVICE).prepare(replace(spec_of(file, config=whole[1]), schedulers=(able, unable)))
    assert found.unsupported_schedulers == (unable,)
    reason = "sampling.scheduler: PNDMScheduler has no rescale_betas_zero_snr = True, as the checkpoint needs"
    assert [str(each) for each in found.failed_checks] == [f"the scheduler {unable}: {reason}"]


@pytest.mark.nightly
async def test_what_was_tried_with_another_scheduler_config_is_tried_anew(whole: tuple[Path, Path]) -> None:
    engine = ImageEngine(DEVICE)
    plain = spec_of(whole[1])
    await engine.prepare(plain)
    other = replace(plain, sampling=replace(plain.sampling, scheduler_config=config_of({"prediction_type": "score"})))
    with pytest.raises(CheckpointError):
        await engine.prepare(other)
    changed = replace(plain, sampling=replace(plain.sampling, scheduler_config=config_of(V)))
    found = len(engine._warmup._found)
    await engine.prepare(changed)
    assert len(engine._warmup._found) == found + 1
    assert describe(plain, plain.runtime, DEVICE).name != describe(changed, changed.runtime, DEVICE).name


def test_a_name_alone_is_a_note(whole: tuple[Path, Path], tmp_path: Path) -> None:
    spec = spec_of(with_marks(whole[0], tmp_path / "myXL_vPred10.safetensors", {}), config=whole[1])
    checkpoint = load_checkpoint(spec, DEVICE)
    assert checkpoint.notes == (
        "its name says v prediction, and it is drawn as epsilon; else set sampling.scheduler_config.prediction_type",
    )
    assert np.array_equal(draw(spec, checkpoint), draw(spec_of(whole[1])))


def changed_encoders(file: Path, path: Path, without: str) -> Path:
    """The whole file with another text encoder, and without a part."""
    weights = load_file(file)
    torch.manual_seed(3)
    saved = {
        name: weight + 0.3 * torch.randn(weight.shape)
        if name.startswith("cond_stage") and weight.is_floating_point()
        else weight
        for name, weight in weights.items()
        if not name.startswith(without)
    }
    save_file(saved, path)
    return path


def test_a_file_without_a_codec_keeps_its_own_text_encoder(whole: tuple[Path, Path], tmp_path: Path) -> None:
    file, folder = whole
    truth = spec_of(changed_encoders(file, tmp_path / "all.safetensors", "none"), config=folder)
    spec = spec_of(changed_encoders(file, tmp_path / "no-vae.safetensors", "first_stage_model"), config=folder)
    assert np.array_equal(draw(spec), draw(truth))
    assert np.abs(draw(spec) - draw(spec_of(folder))).mean() > 1
    assert estimate_bytes(spec, 4) == pytest.approx(estimate_bytes(truth, 4), rel=0.01), "the folder's codec counts"
    on_base = load_checkpoint(replace(spec, config=None, base=folder), DEVICE)
    assert on_base.notes == ("its cond_stage_model.* are not used, but the parts of sd",)


@pytest.mark.parametrize(("part", "prefix"), [("vae", "first_stage_model"), ("text_encoder", "cond_stage_model")])
def test_a_part_that_neither_the_file_nor_the_folder_has_is_named(
    whole: tuple[Path, Path], tmp_path: Path, part: str, prefix: str
) -> None:
    folder = Path(shutil.copytree(whole[1], tmp_path / "configs"))
    for weights in (folder / part).glob("*.safetensors"):
        weights.unlink()
    spec = spec_of(changed_encoders(whole[0], tmp_path / "lacks.safetensors", prefix), config=folder)
    with pytest.raises(CheckpointError, match=rf"lacks.safetensors has no {part}; .*{part}: no weights"):
        load_checkpoint(spec, DEVICE)
