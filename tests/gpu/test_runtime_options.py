"""Every `[runtime]` option alone and in pairs: it draws, or is refused with a reason. Never a broken image."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.memory.runtime import check_conflicts
from pipelines.images.engine import ImageEngine
from pipelines.protocol.images import CheckpointSpec, Runtime
from tests.gpu.conftest import draw
from tests.support.image_jobs import image_job
from tests.support.runtime_pairs import OPTIONS as ALL_OPTIONS
from tests.support.runtime_pairs import choices

GPU = torch.device("cuda")
pytestmark = pytest.mark.usefixtures("few_interpreted_rows")
OF_ALL_DEVICES = (
    "compile", "fp8", "float8", "first-block", "taylorseer", "vae_tiling", "offload encoders", "offload model",
    "offload group",
)  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {name: ALL_OPTIONS[name] for name in OF_ALL_DEVICES} | {
    "cudnn attention": {"attention": "_native_cudnn"},
    "float16": {"dtype": "float16"},
    "float32": {"dtype": "float32"},
}
MAY_DIFFER = 40  # levels on average: the tiny network is untrained, so this is only against noise and black


@pytest.mark.parametrize("names", choices(OPTIONS), ids=" and ".join)
async def test_options_draw_or_are_refused_with_the_reason(names: tuple[str, ...], flux: CheckpointSpec) -> None:
    runtime = Runtime(**{key: value for name in names for key, value in OPTIONS[name].items()})
    capable = torch.cuda.get_device_capability() >= (8, 9)
    try:
        check_conflicts(runtime)
    except CheckpointError as conflict:
        with pytest.raises(CheckpointError, match=str(conflict)[:20]):
            await ImageEngine(GPU).load(replace(flux, runtime=runtime))
        return
    if {"cudnn attention", "float32"} <= set(names):
        with pytest.raises(CheckpointError, match="'_native_cudnn' takes bfloat16 and float16"):
            await ImageEngine(GPU).load(replace(flux, runtime=runtime))
        return
    if "fp8" in names and not capable:
        pytest.skip("this GPU has no float8 products")
    (exact,) = await draw(ImageEngine(GPU), image_job(flux, steps=4))
    engine = ImageEngine(GPU)
    spec = replace(flux, runtime=runtime)
    (image,) = await draw(engine, image_job(spec, steps=4))
    assert np.abs(image.astype(int) - exact).mean() < MAY_DIFFER
    assert len(await draw(engine, image_job(spec, id="two", n=2, steps=4))) == 2
    assert len(await draw(engine, image_job(spec, id="large", width_px=160, height_px=96, steps=4))) == 1


async def test_auto_says_what_it_chose(flux: CheckpointSpec) -> None:
    checkpoint = await ImageEngine(GPU).load(replace(flux, runtime=Runtime(auto=True)))
    assert checkpoint.notes[0].startswith("runtime auto: plain (")
