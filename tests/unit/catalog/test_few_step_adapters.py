"""Adapters that were distilled to few steps: how images are drawn with them, by their names and their cards."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from pipelines.checkpoints.inspection.suggestion import adapter_notes, adapter_weight, suggest, suggested_spec
from pipelines.images.denoising.noise_schedulers import new_scheduler
from pipelines.protocol.images import Lora, Runtime, SamplingDefaults
from server.catalog.images import load_catalog
from server.errors import BadRequest, NotFound
from server.flows.operators.checkpoints import CheckpointManager
from tests.support.weight_files import INDEX, flux_folder, inspect_checkpoint, sd_folder

QWEN = {
    "_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 0.9,
    "base_image_seq_len": 256, "max_image_seq_len": 8192, "shift_terminal": 0.02, "time_shift_type": "exponential",
}  # fmt: skip
TRAILING = {"timestep_spacing": "trailing"}
LIGHTNING = {"base_shift": 1.0986, "max_shift": 1.0986, "shift_terminal": 0.0}


def checkpoint(kind: str, folder: Path) -> Path:
    match kind:
        case "flux":
            return flux_folder(folder)
        case "qwen":
            index = {
                **INDEX,
                "_class_name": "QwenImagePipeline",
                "transformer": ["diffusers", "QwenImageTransformer2DModel"],
            }
            return flux_folder(folder, index=index, scheduler=QWEN)
    return sd_folder(folder, kind)


def adapter(file: Path, card: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    down, up = np.zeros((4, 8), np.float16), np.zeros((8, 4), np.float16)
    save_file({"unet.a.lora_A.weight": down, "unet.a.lora_B.weight": up}, file)
    if card:
        (file.parent / "README.md").write_text(card)
    return file


@pytest.mark.parametrize(
    ("kind", "name", "steps", "guidance", "scheduler", "config", "weight"),
    [
        ("EulerDiscreteScheduler", "sdxl_lightning_4step_lora", 4, 1.0, None, TRAILING, 1.0),
        ("EulerDiscreteScheduler", "dmd2_sdxl_4step_lora_fp16", 4, 1.0, "LCMScheduler", {}, 1.0),
        ("EulerDiscreteScheduler", "TCD-SDXL-LoRA", 4, 1.0, "TCDScheduler", {}, 1.0),
        ("EulerDiscreteScheduler", "lcm-lora-sdxl/pytorch_lora_weights", 4, 1.0, "LCMScheduler", {}, 1.0),
        ("PNDMScheduler", "Hyper-SD15-8steps-lora", 8, 1.0, "EulerDiscreteScheduler", TRAILING, 1.0),
        ("PNDMScheduler", "Hyper-SD15-12steps-CFG-lora", 12, 7.5, "EulerDiscreteScheduler", TRAILING, 1.0),
        ("EulerDiscreteScheduler", "watercolor", 50, 7.5, None, {}, 1.0),
        ("flux", "Hyper-FLUX.1-dev-8steps-lora", 8, 3.5, None, {}, 0.125),
        ("flux", "FLUX.1-Turbo-Alpha/diffusion_pytorch_model", 4, 3.5, None, {}, 1.0),
        ("qwen", "Qwen-Image-Lightning-8steps-V1.1", 8, 1.0, None, LIGHTNING, 1.0),
        ("qwen", "watercolor", 50, 4.0, None, {}, 1.0),
    ],
)
def test_a_name_says_how_images_are_drawn(
    tmp_path: Path, kind: str, name: str, steps: int, guidance: float, scheduler: str | None,
    config: Mapping[str, Any], weight: float,
) -> None:  # fmt: skip
    file, found = adapter(tmp_path / f"{name}.safetensors"), inspect_checkpoint(checkpoint(kind, tmp_path / "base"))
    suggested = suggest(found, [file])
    assert (suggested.steps.value, suggested.guidance.value) == (steps, guidance)
    assert (suggested.noise.scheduler, dict(suggested.noise.config)) == (scheduler, config)
    assert adapter_weight(found, file) == weight
    assert ("an adapter's name says" in suggested.steps.found) == (name != "watercolor")
    assert suggest(found, [adapter(tmp_path / "ink.safetensors"), file]) == suggested


def test_the_card_of_an_adapter_counts_and_not_that_of_its_checkpoint(tmp_path: Path) -> None:
    base = checkpoint("flux", tmp_path / "base")
    (base / "README.md").write_text("pipe(prompt, num_inference_steps=50, guidance_scale=5.0)")
    card = "pipe(prompt, num_inference_steps=8, guidance_scale=3.0)"
    file = adapter(tmp_path / "FLUX.1-Turbo-Alpha" / "diffusion_pytorch_model.safetensors", card)
    suggested = suggest(inspect_checkpoint(base), [file])
    assert (suggested.steps.value, suggested.guidance.value) == (8, 3.0)


@pytest.mark.parametrize("steps", [4, 8])
def test_lightning_has_the_noise_that_it_was_distilled_with(steps: int) -> None:
    """By its publisher's own scheduler: a shift of 3, without shift_terminal, which TOML can't leave out but as 0."""
    kind, sigmas = diffusers.FlowMatchEulerDiscreteScheduler, np.linspace(1.0, 1 / steps, steps)
    changed = SamplingDefaults(scheduler_config=tuple(sorted(LIGHTNING.items())))
    used = new_scheduler(kind.from_config(QWEN), changed)
    reference = kind.from_config({**QWEN, "use_dynamic_shifting": False, "shift": 3.0, "shift_terminal": None})
    used.set_timesteps(sigmas=sigmas, mu=1.0986)  # what the pipeline makes of equal base_shift and max_shift
    reference.set_timesteps(sigmas=sigmas)
    assert torch.allclose(used.sigmas, reference.sigmas, atol=1e-4)


def test_an_added_file_has_the_adapter_and_what_it_calls_for(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    checkpoint("qwen", folders[1] / "qwen")
    adapter(folders[1] / "Qwen-Image-Lightning-4steps.safetensors")
    added = manager.add("qwen", name="quick", loras=["Qwen-Image-Lightning-4steps.safetensors"])
    assert "steps = 4  # an adapter's name says lightning: check it" in added.text
    model = load_catalog(*folders).models["quick"]
    assert (model.steps, model.checkpoint.sampling.guidance) == (4, 1.0)
    assert dict(model.checkpoint.sampling.scheduler_config) == LIGHTNING
    assert [lora.path.name for lora in model.checkpoint.runtime.loras] == ["Qwen-Image-Lightning-4steps.safetensors"]
    assert adapter_notes(model.checkpoint) == ()
    assert manager.fit(model, "qwen") == [], "a swap keeps what the adapter calls for"


def test_what_is_no_adapter_is_refused(manager: CheckpointManager, folders: tuple[Path, Path]) -> None:
    base = checkpoint("flux", folders[1] / "flux")
    with pytest.raises(BadRequest, match="no LoRA layers are in it") as refused:
        manager.inspect("flux", loras=[str(base / "vae/diffusion_pytorch_model.safetensors")])
    assert refused.value.param == "loras"
    with pytest.raises(BadRequest, match=r"name its \.safetensors file"):
        manager.add("flux", loras=["flux"])
    with pytest.raises(NotFound):
        manager.add("flux", loras=["gone.safetensors"])
    assert not (folders[0] / "flux.toml").exists()


def test_a_load_says_what_a_file_that_was_written_by_hand_lacks(tmp_path: Path) -> None:
    found = inspect_checkpoint(checkpoint("qwen", tmp_path / "qwen"))
    spec = suggested_spec("qwen", found, suggest(found))
    file = adapter(tmp_path / "Qwen-Image-Lightning-4steps.safetensors")
    assert adapter_notes(spec) == ()
    (note,) = adapter_notes(replace(spec, runtime=Runtime(loras=(Lora(file, 1.0),))))
    assert note == (
        "an adapter's name says lightning: check it: images may be better with steps = 4, sampling.guidance = 1.0, "
        'sampling.scheduler_config = {"base_shift": 1.0986, "max_shift": 1.0986, "shift_terminal": 0.0}'
    )
    plain = adapter(tmp_path / "ink.safetensors")
    assert adapter_notes(replace(spec, runtime=Runtime(loras=(Lora(plain, 1.0),)))) == ()
