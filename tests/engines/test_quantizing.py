"""Denoisers that are quantized as they are loaded: where their weights are meanwhile."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipelines.checkpoints.memory.shares import Room
from pipelines.images.loading import runtime_options
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.fp8 import Fp8Linear, Fp8Report, quantize_linears, suitable_linears
from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import CheckpointSpec, Runtime
from tests.engines.device import DEVICE

Spec = Callable[[str], CheckpointSpec]


def load(spec: CheckpointSpec, device: torch.device, **runtime: Any) -> Checkpoint:
    return load_checkpoint(replace(spec, runtime=Runtime(dtype="float32", **runtime)), device, room=Room(2**40))


def devices(part: torch.nn.Module) -> set[str]:
    return {weight.device.type for weight in (*part.parameters(), *part.buffers())}


def watch(monkeypatch: pytest.MonkeyPatch, poll: Callable[[Any], Callable[[], int]]) -> list[int]:
    """What `look(denoiser)()` says whenever the next layer is about to be quantized."""
    seen: list[int] = []
    make = Fp8Linear.__init__

    def quantize(denoiser: Any, device: torch.device) -> Fp8Report:
        count = poll(denoiser)

        def made(self: Fp8Linear, linear: torch.nn.Linear) -> None:
            seen.append(count())
            make(self, linear)

        monkeypatch.setattr(Fp8Linear, "__init__", made)
        return quantize_linears(denoiser, device)

    monkeypatch.setattr(runtime_options, "quantize_linears", quantize)
    return seen


def test_the_weights_of_a_layer_are_free_before_the_next_one_is_quantized(
    spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alive(denoiser: Any) -> Callable[[], int]:
        weights = [weakref.ref(layer.weight) for layer in suitable_linears(denoiser).values()]
        return lambda: sum(weight() is not None for weight in weights)

    seen = watch(monkeypatch, alive)
    load(spec("klein"), DEVICE, quantize="fp8")
    assert len(seen) > 4
    assert seen == list(range(len(seen), 0, -1))


def test_the_device_has_one_layer_at_a_time_that_is_not_yet_quantized(
    spec: Spec, second: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_device(denoiser: Any) -> Callable[[], int]:
        return lambda: sum(layer.weight.device.type == "lazy" for layer in suitable_linears(denoiser).values())

    seen = watch(monkeypatch, on_device)
    loaded = load(spec("klein"), second, quantize="fp8")
    assert len(seen) > 4
    assert set(seen) == {1}
    assert {
        name for part in loaded.components.values() if isinstance(part, torch.nn.Module) for name in devices(part)
    } == {"lazy"}


def test_float8_weights_reach_the_device_as_such(
    spec: Spec, second: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(load(spec("klein"), DEVICE).denoiser)
    cast, seen = kind.enable_layerwise_casting, []

    def casting(self: Any, **options: Any) -> None:
        seen.append(devices(self))
        cast(self, **options)

    monkeypatch.setattr(kind, "enable_layerwise_casting", casting)
    loaded = load(spec("klein"), second, quantize="float8")
    assert seen == [{"cpu"}]
    assert devices(loaded.denoiser) == {"lazy"}
    assert torch.float8_e4m3fn in {weight.dtype for weight in loaded.denoiser.parameters()}


def test_layers_of_an_offloaded_denoiser_are_tried_on_the_device_and_then_leave_it(
    spec: Spec, second: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch 2.11 is on a DEVICE, where it multiplies no float8 matrices by rows."""
    scaled_mm = torch._scaled_mm

    def products(rows: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        if rows.device.type == "cpu":
            raise RuntimeError("(scale_a.numel() == 1 && scale_b.numel() == 1) INTERNAL ASSERT FAILED")
        return scaled_mm(rows, *others, **options)

    monkeypatch.setattr(torch, "_scaled_mm", products)
    offload = "pipelines.images.loading.runtime_options._offload"
    monkeypatch.setattr(offload, lambda *_: None)  # hooks that take a known device
    offloaded = load(spec("klein"), second, quantize="fp8", offload="model")
    layers = [layer for layer in offloaded.denoiser.modules() if isinstance(layer, Fp8Linear)]
    assert offloaded.notes[0].startswith(f"fp8: {len(layers)} linear layers")
    assert devices(offloaded.denoiser) == {"cpu"}


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that was made, by type."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            self.elements[tensor.dtype] = max(self.elements.get(tensor.dtype, 0), tensor.numel())
        return result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_are_never_wider_than_they_come(dtype: torch.dtype) -> None:
    layer = Fp8Linear(torch.nn.Linear(64, 32, dtype=dtype).requires_grad_(False))
    rows = torch.randn(48, 64, dtype=dtype)
    with Largest() as made:
        layer(rows)
    assert made.elements[torch.float8_e4m3fn] == rows.numel()
    assert made.elements[torch.float32] == len(rows)  # the scales


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_of_any_size_keep_their_precision(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.nn.Linear(256, 64, bias=False, dtype=dtype).requires_grad_(False)
    exact.weight.copy_(torch.randn(64, 256, generator=generator))
    rows = torch.randn(32, 256, generator=generator) * torch.logspace(-3, 2, 32)[:, None]
    rows[7] = 0
    found = Fp8Linear(exact)(rows.to(dtype)).float()
    expected = rows @ exact.weight.float().t()
    assert torch.equal(found[7], torch.zeros(64))
    errors = (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-9)
    assert errors.max() < 0.05


def test_a_denoiser_in_fp8_computes_queries_keys_and_values_by_one_product(spec: Spec) -> None:
    attention = load(spec("klein"), DEVICE, quantize="fp8").denoiser.transformer_blocks[0].attn
    assert isinstance(attention.to_qkv, Fp8Linear)
    assert not hasattr(attention, "to_q")
