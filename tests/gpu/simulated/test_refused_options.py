"""What a GPU or its libraries refuse when it is tried: the answer is no, no worker ends, and `auto` goes on."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.memory.shares import Room
from pipelines.device import failures
from pipelines.device.start_checks import check_device
from pipelines.images.engine import ImageEngine
from pipelines.images.loading import fp8, runtime_options
from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import CheckpointSpec, Runtime
from tests.gpu.conftest import draw
from tests.support.image_jobs import image_job

GPU = torch.device("cuda")
NO_PRODUCT = "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic(ltHandle, ...)`"
NO_IMAGE = "Triton Error [CUDA]: device kernel image is invalid"


def refuse_products(patch: pytest.MonkeyPatch) -> None:
    def multiply(*_: Any) -> torch.Tensor:
        raise RuntimeError(NO_PRODUCT)

    patch.setattr(fp8, "_multiply", multiply)


def budget_for(spec: CheckpointSpec, quantize: str) -> int:
    """The least budget with which `auto` chooses this."""
    tried = (2**12 * step for step in range(10_000))
    return next(size for size in tried if runtime_options.resolve(spec, GPU, Room(size))[0].quantize == quantize)


def test_a_well_gpu_has_no_problem() -> None:
    assert check_device(GPU, "auto", 1) == ()


async def test_fp8_that_the_device_refuses_is_an_error_of_the_option(
    flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_products(monkeypatch)
    with pytest.raises(CheckpointError, match=r"'fp8' needs another torch: .* by rows on this GPU$"):
        await ImageEngine(GPU).load(replace(flux, runtime=Runtime(quantize="fp8")))


def test_auto_goes_on_to_its_next_choice(flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(flux, runtime=Runtime(auto=True))
    budget = budget_for(spec, "fp8")
    assert load_checkpoint(spec, GPU, room=Room(budget)).runtime.quantize == "fp8"
    refuse_products(monkeypatch)
    loaded = load_checkpoint(spec, GPU, room=Room(budget))
    assert loaded.runtime.quantize == "float8"
    assert loaded.notes[1].startswith("without 'fp8': runtime.quantize: 'fp8' needs another torch")


async def test_kernels_that_the_driver_does_not_load_are_done_without(
    flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quantize_rows(_: torch.Tensor) -> None:
        raise RuntimeError(NO_IMAGE)

    (exact,) = await draw(ImageEngine(GPU), image_job(flux, steps=4))
    monkeypatch.setitem(
        sys.modules, "pipelines.images.loading.fp8_kernel", SimpleNamespace(quantize_rows=quantize_rows)
    )  # type: ignore[arg-type]
    fp8._quantizer.cache_clear()
    try:
        spec = replace(flux, runtime=Runtime(quantize="fp8"))
        engine = ImageEngine(GPU)
        assert any(NO_IMAGE in note for note in (await engine.load(spec)).notes)
        (image,) = await draw(engine, image_job(spec, steps=4))
    finally:
        fp8._quantizer.cache_clear()
    assert np.abs(image.astype(int) - exact).mean() < 40


def test_a_lost_device_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_products(monkeypatch)
    assert fp8.supports_scaled_matmul(GPU) is False
    monkeypatch.setattr(failures, "is_responsive", lambda _: False)
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_NOT_SUPPORTED"):
        fp8.supports_scaled_matmul(GPU)
