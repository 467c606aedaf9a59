"""Upscalers in every published layout compute what their own code computes; an image is enlarged in tiles without
seams, in turns, in shared passes, and at any factor."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import (
    CheckpointSpec,
    Encoding,
    Event,
    Failed,
    Finished,
    ImageJob,
    Progress,
    RawImage,
    Runtime,
    SamplingDefaults,
)
from tests.engines.shared_passes import Passes, drawn_together
from tests.support.tiny_upscalers import First, Weights, compact, later_names, make_upscaler, real_names, weights_of
from tests.support.weight_files import inspect_checkpoint

CPU = torch.device("cpu")
X4 = weights_of(First(2))


def spec_of(file: Path, tile_px: int = 64) -> CheckpointSpec:
    runtime = Runtime(dtype="float32")
    return CheckpointSpec(
        file.stem, file, None, "", "upscale", 1, native_area_px=tile_px**2, runtime=runtime, version=1
    )


def saved(file: Path, weights: Weights) -> CheckpointSpec:
    save_file(dict(weights), file)
    return spec_of(file)


def shapes(width: int, height: int) -> RawImage:
    """Ramps with a white square: what a seam or a shift would show in."""
    across, down = np.meshgrid(np.linspace(0, 220, width), np.linspace(0, 220, height))
    pixels = np.stack([across, down, 220 - across], axis=2).astype(np.uint8)
    pixels[height // 3 : height // 2, width // 3 : width // 2] = 255
    return RawImage(width, height, "RGB", pixels.tobytes())


def job_of(spec: CheckpointSpec, factor: int, width: int = 90, height: int = 70, n: int = 1) -> ImageJob:
    return ImageJob(
        "one", spec, "", SamplingDefaults().resolve(steps=1), factor * width, factor * height, n, 1,
        (shapes(width, height),), None, Encoding(), {}, 600, enlarges=True,
    )  # fmt: skip


def pixels_of(event: Event, index: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    assert isinstance(event, Finished), event
    return np.asarray(Image.open(io.BytesIO(event.images[index].data))).astype(np.int16)


async def drawn(engine: ImageEngine, job: ImageJob) -> list[Event]:
    return [event async for event in engine.submit(job)]


@pytest.mark.parametrize(
    ("weights", "factor"),
    [
        (X4, 4),
        (later_names(X4), 4),
        (real_names(X4), 4),
        ({f"params_ema.{name}": weight for name, weight in real_names(X4).items()}, 4),
        ({f"module.{name}": weight.half() for name, weight in X4.items()}, 4),
        (weights_of(First(1)), 2),
        (weights_of(First(3, blocks=1)), 8),
    ],
)
def test_a_file_of_any_layout_computes_what_its_own_code_does(tmp_path: Path, weights: Weights, factor: int) -> None:
    network = load_checkpoint(saved(tmp_path / "up.safetensors", weights), CPU).denoiser
    own = First({2: 1, 4: 2, 8: 3}[factor], blocks=1 if factor == 8 else 2)
    image = torch.rand(2, 3, 11, 14, generator=torch.Generator().manual_seed(0))
    assert network.scale == factor
    assert (network(image) - own(image)).abs().max() < (
        2e-3 if next(iter(weights.values())).dtype.itemsize == 2 else 1e-5
    )


@pytest.mark.parametrize(("inputs", "factor"), [(12, 2)])
def test_real_esrgans_of_twice_fold_pixels_first(tmp_path: Path, inputs: int, factor: int) -> None:
    own = First(2, inputs=inputs)
    network = load_checkpoint(saved(tmp_path / "up.safetensors", real_names(weights_of(own))), CPU).denoiser
    image = torch.rand(1, 3, 11, 13)
    padded = functional.pad(image, (0, 1, 0, 1), "replicate")
    assert network.scale == factor
    assert torch.allclose(network(image), own(functional.pixel_unshuffle(padded, 2))[:, :, :22, :26], atol=1e-6)


def test_the_small_network_adds_to_the_images_own_pixels(tmp_path: Path) -> None:
    weights = compact(4)
    network = load_checkpoint(saved(tmp_path / "up.safetensors", weights), CPU).denoiser
    x = image = torch.rand(1, 3, 9, 12)
    for place in (0, 2):
        x = functional.conv2d(x, weights[f"body.{place}.weight"], weights[f"body.{place}.bias"], padding=1)
        x = functional.prelu(x, weights[f"body.{place + 1}.weight"])
    x = functional.conv2d(x, weights["body.4.weight"], weights["body.4.bias"], padding=1)
    expected = functional.pixel_shuffle(x, 4) + image.repeat_interleave(4, 2).repeat_interleave(4, 3)
    assert torch.allclose(network(image), expected, atol=1e-6)


@pytest.mark.parametrize("factor", [2, 4, 8])
async def test_tiles_have_no_seams_at_any_factor(tmp_path: Path, factor: int) -> None:
    """One of 4x is scaled down to 2, and runs twice for 8."""
    spec = spec_of(make_upscaler(tmp_path / "up.safetensors"))
    whole = replace(spec, native_area_px=10_000)
    engine = ImageEngine(CPU)
    events = await drawn(engine, job_of(spec, factor))
    at_once = pixels_of((await drawn(engine, job_of(whole, factor)))[-1])
    tiled = pixels_of(events[-1])
    assert tiled.shape == (70 * factor, 90 * factor, 3)
    assert [event.step for event in events if isinstance(event, Progress)] == [1, 2, 3, 4]
    assert np.abs(tiled - at_once).mean() < 0.1
    assert np.abs(tiled - at_once).max() <= 8
    plain = Image.frombytes("RGB", (90, 70), shapes(90, 70).data).resize((90 * factor, 70 * factor))
    assert np.abs(tiled - np.asarray(plain)).mean() < 20  # it is the image
    engine.close()


async def test_equal_tiles_share_passes_and_warmup_says_what_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Passes(monkeypatch)  # limits by size alone
    spec = spec_of(make_upscaler(tmp_path / "up.safetensors"))
    engine = ImageEngine(CPU)
    capabilities = await engine.prepare(spec)
    assert (capabilities.names, capabilities.second_pass, capabilities.at_once) == ([], True, True)
    assert capabilities.failed_checks == ()
    alone = pixels_of((await drawn(engine, job_of(spec, 4)))[-1])
    jobs = [replace(job_of(spec, 4), id=str(index)) for index in range(4)]
    ends = await drawn_together(engine, jobs)
    assert any(isinstance(end, Finished) and end.merged for end in ends)
    assert max(np.abs(pixels_of(end) - alone).max() for end in ends) <= 1
    engine.close()


async def test_a_spoiled_file_does_not_serve(tmp_path: Path) -> None:
    engine = ImageEngine(CPU)
    for weights, why in (
        ({name: weight * float("nan") for name, weight in X4.items()}, "not numbers"),
        ({name: weight * 0 for name, weight in X4.items()}, "one colour"),
        ({name: weight for name, weight in X4.items() if "RDB2" not in name}, "weights are not in its files"),
        (X4 | {"model.99.extra": torch.ones(1)}, "no place"),
    ):
        spec = replace(saved(tmp_path / "up.safetensors", weights), version=hash(why))
        with pytest.raises(CheckpointError, match=why):
            await engine.prepare(spec)
    engine.close()


async def test_a_call_is_cancelled_between_tiles(tmp_path: Path) -> None:
    engine = ImageEngine(CPU)
    events = []
    async for event in engine.submit(job_of(spec_of(make_upscaler(tmp_path / "up.safetensors"), 32), 2)):
        events.append(event)
        if isinstance(event, Progress):
            engine.cancel("one")
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "cancelled"
    engine.close()


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (
            {**X4, "model.1.sub.0.RDB1.conv1x1.weight": torch.zeros(4, 8, 1, 1)},
            "no RRDBNet, which has no model.1.sub.0",
        ),
        ({name: weight for name, weight in X4.items() if name != "model.0.bias"}, "without conv_first.bias"),
        ({**compact(4), "tail.weight": torch.zeros(3, 3)}, "no SRVGGNetCompact, which has no tail.weight"),
        ({name: weight for name, weight in compact(2).items() if name != "body.3.weight"}, "without body.3.weight"),
        ({name: weight.to(torch.int8) for name, weight in X4.items()}, "is of I8, without a scale"),
    ],
    ids=["plus", "half", "other", "half compact", "int8"],
)
def test_what_the_load_would_refuse_is_told_before(tmp_path: Path, weights: Weights, reason: str) -> None:
    spec = saved(tmp_path / "x.safetensors", weights)
    (problem,) = inspect_checkpoint(spec.path).problems
    assert reason in problem
    with pytest.raises(CheckpointError):
        load_checkpoint(spec, CPU)


@pytest.mark.parametrize(
    "weights", [X4, later_names(X4), real_names(X4), compact(2)], ids=["first", "later", "real", "compact"]
)
def test_whole_files_of_every_layout_have_no_problem(tmp_path: Path, weights: Weights) -> None:
    assert inspect_checkpoint(saved(tmp_path / "x.safetensors", weights).path).problems == ()
