"""Every `[runtime]` option alone and in pairs on a CPU: it draws, or is refused with the reason. The table is in
docs/reference/runtime-options.md; what needs a GPU is in tests/gpu."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import CheckpointSpec
from tests.engines.device import DEVICE
from tests.engines.shared_passes import drawn
from tests.engines.test_families import family_spec
from tests.support.image_jobs import image_job
from tests.support.runtime_pairs import NEED_A_GPU, choices, is_refused, runtime_of
from tests.support.tiny_families import make_family


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> CheckpointSpec:
    """A tiny FLUX.1, with an adapter in loras/ beside it."""
    folder = tmp_path_factory.mktemp("flux")
    make_family("flux", folder / "flux")
    spec = family_spec("flux", folder, "img2img")
    checkpoint = load_checkpoint(spec, DEVICE)
    checkpoint.denoiser.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    checkpoint.pipeline_class.save_lora_weights(
        folder / "loras",
        transformer_lora_layers=get_peft_model_state_dict(checkpoint.denoiser),
        weight_name="style.safetensors",
    )
    return spec


@pytest.mark.nightly
@pytest.mark.parametrize(
    "names", [each for each in choices() if DEVICE.type == "cuda" or not NEED_A_GPU & set(each)], ids=" and ".join
)
async def test_options_draw_or_are_refused_with_the_reason(
    names: tuple[str, ...], flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_denoiser(denoiser: Any) -> None:
        denoiser.forward = torch.compile(denoiser.forward, dynamic=True, backend="eager")  # building takes minutes

    monkeypatch.setattr("pipelines.images.loading.runtime_options.compile_denoiser", compile_denoiser)
    spec = replace(flux, runtime=runtime_of(names, flux.path.parent / "loras"))
    if is_refused(names):
        with pytest.raises(CheckpointError, match="defeat each other: "):
            await ImageEngine(DEVICE).load(spec)
        return
    engine = ImageEngine(DEVICE)
    (plain,) = await drawn(engine, image_job(spec, steps=4))
    if "lora_folder" in names:
        (adapted,) = await drawn(engine, image_job(spec, id="adapted", steps=4, loras=(("style", 1.0),)))
        assert not np.array_equal(adapted, plain)
        assert np.array_equal((await drawn(engine, image_job(spec, id="again", steps=4)))[0], plain)
    assert len(await drawn(engine, image_job(spec, id="two", n=2, steps=4))) == 2
    assert len(await drawn(engine, image_job(spec, id="large", width_px=160, height_px=96, steps=4))) == 1
