"""Denoisers on their way to another process: whatever `[runtime]` made of them, they compute the same there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig

from pipelines.images.loading.fp8 import quantize_linears
from pipelines.images.parallel.messages import Unpackable, pack_module, replace_weights, unpack_module
from tests.engines.device import DEVICE
from tests.support.tiny_families.qwen import qwen_transformer


def plain(_: Any) -> None:
    pass


def with_adapter(denoiser: Any) -> None:
    denoiser.add_adapter(LoraConfig(r=2, target_modules=["to_q"], init_lora_weights=False))


def compute(denoiser: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    output: torch.Tensor = denoiser(
        hidden_states=torch.randn(1, 16, 64, generator=generator).to(DEVICE),
        encoder_hidden_states=torch.randn(1, 6, 16, generator=generator).to(DEVICE),
        encoder_hidden_states_mask=None,
        timestep=torch.tensor([0.5], device=DEVICE),
        img_shapes=[[(1, 4, 4)]],
    ).sample
    return output


def with_fp8(denoiser: Any) -> None:
    quantize_linears(denoiser, DEVICE)


@pytest.mark.parametrize("change", [plain, with_adapter, with_fp8])
def test_a_copy_computes_the_same(change: Callable[[Any], Any]) -> None:
    torch.manual_seed(1)
    denoiser = qwen_transformer().eval().to(DEVICE)
    change(denoiser)
    packed, weights = pack_module(denoiser)
    copy, places = unpack_module(packed)
    replace_weights(copy, {id(place): weight.clone() for place, weight in zip(places, weights, strict=True)})
    with torch.no_grad():
        assert torch.equal(compute(copy), compute(denoiser))


def test_tied_weights_stay_tied() -> None:
    one = torch.nn.Linear(4, 4)
    two = torch.nn.Linear(4, 4)
    two.weight = one.weight
    packed, weights = pack_module(torch.nn.Sequential(one, two))
    assert len(weights) == 3
    copy, places = unpack_module(packed)
    replace_weights(copy, {id(place): weight for place, weight in zip(places, weights, strict=True)})
    assert copy[0].weight is copy[1].weight


def test_weights_that_are_more_than_their_bytes_are_refused() -> None:
    class Quantized(torch.nn.Parameter):
        pass

    module = torch.nn.Linear(4, 4)
    module.weight = Quantized(module.weight.data)
    with pytest.raises(Unpackable, match="Quantized"):
        pack_module(module)
