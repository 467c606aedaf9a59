"""SDXL's codec in low precision: diffusers casts it to float32 around some of its passes, and all runs share it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.images.denoising.merging import Sharing
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.row_limits import RowLimits
from pipelines.images.scheduling.scheduler import DeviceScheduler
from pipelines.protocol.images import CheckpointSpec, Dtype, Finished, Runtime
from tests.engines.conftest import left_half, plain_image
from tests.engines.device import DEVICE
from tests.engines.shared_passes import drawn, drawn_together
from tests.engines.test_families import family_spec
from tests.support.image_jobs import image_job
from tests.support.tiny_families import make_family

LOW = (pytest.param("bfloat16", marks=pytest.mark.nightly), "float16")
KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "reference": {"references": (plain_image(),), "strength": 0.9},
    "mask": {"references": (plain_image(),), "mask": left_half(), "strength": 0.9},
    "tiles": {"width_px": 160, "height_px": 96},
}
Sdxl = Callable[[Dtype], CheckpointSpec]


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Sdxl:
    folder = tmp_path_factory.mktemp("cast")
    make_family("sdxl", folder / "sdxl")
    return lambda dtype: replace(family_spec("sdxl", folder, "img2img"), runtime=Runtime(dtype=dtype))


@pytest.mark.daily("float16-text")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", LOW)
async def test_runs_at_once_never_meet_in_a_cast_codec(dtype: Dtype, kind: str, sdxl: Sdxl) -> None:
    spec, engine = sdxl(dtype), ImageEngine(DEVICE)
    await drawn(engine, image_job(spec, id="first"))  # only then are there several at once
    jobs = [image_job(spec, id="two", n=2, steps=3, **KINDS[kind]), image_job(spec, id="text", seed=9, steps=3)]
    events = await drawn_together(engine, jobs)
    assert [type(event) for event in events] == [Finished, Finished], events


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", LOW)
async def test_a_pass_without_memory_leaves_the_codec_as_it_was(dtype: Dtype, kind: str, sdxl: Sdxl) -> None:
    """The run is tried again, on the codec that the failed one had cast."""
    spec, engine = sdxl(dtype), ImageEngine(DEVICE)
    checkpoint = await engine.load(spec)
    codec = checkpoint.components["vae"]
    half = codec.decoder if kind == "text" else codec.encoder
    left = 1

    def fail(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    half.register_forward_pre_hook(fail)
    await drawn(engine, image_job(spec, steps=3, **KINDS[kind]))
    assert left < 0
    assert {weight.dtype for weight in codec.parameters()} == {getattr(torch, dtype)}
    await drawn(engine, image_job(spec, id="next"))


async def test_warmup_draws_two_at_once_with_images(sdxl: Sdxl) -> None:
    found = await ImageEngine(DEVICE).prepare(sdxl("bfloat16"))
    assert (found.at_once, found.failed_checks) == (True, ())


@pytest.mark.nightly
async def test_warmup_finds_that_two_with_images_fail(sdxl: Sdxl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as by a class of which it is not known that it casts the codec."""
    monkeypatch.setattr("pipelines.images.loading.load.is_cast", lambda *_: False)
    found = await ImageEngine(DEVICE).prepare(sdxl("bfloat16"))
    assert not found.at_once
    assert [each.what for each in found.failed_checks] == ["two images at once"]
    assert found.failed_checks[0].why.startswith("with a reference: RuntimeError: ")


@pytest.mark.parametrize(
    ("name", "dtype", "pauses"), [("sdxl", "float32", 1), ("sdxl", "float16", 0), ("flux", "float16", 1)]
)
def test_only_a_codec_that_is_cast_is_one_turn(name: str, dtype: Dtype, pauses: int, tmp_path: Path) -> None:
    make_family(name, tmp_path / name)
    spec = replace(family_spec(name, tmp_path, "img2img"), runtime=Runtime(dtype=dtype))
    checkpoint: Checkpoint = load_checkpoint(spec, DEVICE, Sharing(DeviceScheduler(), RowLimits(1)))
    assert checkpoint.components["vae"].config.force_upcast
    assert len(checkpoint.components["vae"].decoder._forward_pre_hooks) == pauses
