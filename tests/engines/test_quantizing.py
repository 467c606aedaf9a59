"""Denoisers that are quantized as they are loaded: where their weights are meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pipelines.images.checkpoint import Checkpoint
from pipelines.images.fp8 import Fp8Linear
from pipelines.images.loading import load_checkpoint
from pipelines.protocol.images import CheckpointSpec, Runtime

Spec = Callable[[str], CheckpointSpec]


def load(spec: CheckpointSpec, device: torch.device, **runtime: Any) -> Checkpoint:
    return load_checkpoint(replace(spec, runtime=Runtime(dtype="float32", **runtime)), device, budget_bytes=2**40)


def devices(part: torch.nn.Module) -> set[str]:
    return {weight.device.type for weight in (*part.parameters(), *part.buffers())}


def test_layers_of_an_offloaded_denoiser_are_tried_on_the_device_and_then_leave_it(
    spec: Spec, second: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch 2.11 is on a CPU, where it multiplies no float8 matrices by rows."""
    scaled_mm = torch._scaled_mm

    def products(rows: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        if rows.device.type == "cpu":
            raise RuntimeError("(scale_a.numel() == 1 && scale_b.numel() == 1) INTERNAL ASSERT FAILED")
        return scaled_mm(rows, *others, **options)

    monkeypatch.setattr(torch, "_scaled_mm", products)
    monkeypatch.setattr("pipelines.images.runtime_options._offload", lambda *_: None)  # hooks that take a known device
    offloaded = load(spec("klein"), second, quantize="fp8", offload="model")
    layers = [layer for layer in offloaded.denoiser.modules() if isinstance(layer, Fp8Linear)]
    assert offloaded.notes[0].startswith(f"fp8: {len(layers)} linear layers")
    assert devices(offloaded.denoiser) == {"cpu"}
