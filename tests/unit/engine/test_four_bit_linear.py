"""Layers of four bits: which values they hold exactly, and what they compute."""

import gguf
import pytest
import torch
from torch import nn

from pipelines.chat.model.four_bit_linear import BLOCK, FourBitLinear, four_bits

ROWS, OUT, IN = 20, 48, 256


def quantized(kind: str) -> nn.Linear:
    """Return a layer with the values that a file of this type has, a block of zeros and a block of one value in it."""
    torch.manual_seed(0)
    weight = torch.randn(OUT, IN) / 20
    weight[0, :BLOCK], weight[1, BLOCK : 2 * BLOCK] = 0, 0.01
    of_type = getattr(gguf.GGMLQuantizationType, kind)
    layer = nn.Linear(IN, OUT)
    layer.weight.data = torch.tensor(gguf.dequantize(gguf.quantize(weight.numpy(), of_type), of_type))
    return layer


def packed(layer: nn.Linear) -> FourBitLinear:
    found = four_bits(layer)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
@torch.inference_mode()
def test_a_prompt_is_computed_as_if_the_file_were_multiplied_out(kind: str) -> None:
    layer = quantized(kind)
    inputs = torch.randn(1, ROWS, IN)
    assert torch.equal(packed(layer)(inputs), layer(inputs))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
@torch.inference_mode()
def test_a_step_of_decoding_is_near_and_no_row_depends_on_the_others(kind: str) -> None:
    layer = quantized(kind)
    inputs = torch.randn(ROWS, 1, IN)
    four, whole = packed(layer), layer(inputs)
    together = four(inputs)
    assert (together - whole).norm() < 0.005 * whole.norm()
    for rows in range(1, ROWS):
        assert torch.equal(four(inputs[:rows]), together[:rows])
        assert torch.equal(four(inputs[rows : rows + 1]), together[rows : rows + 1])


@torch.inference_mode()
def test_blocks_of_two_scales_are_held_to_half_precision() -> None:
    """As in Q4_K: spacing and least value of a block are products with those of its super-block."""
    torch.manual_seed(0)
    blocks = OUT * IN // BLOCK
    scales, least = torch.randint(1, 64, (blocks, 1)), torch.randint(0, 64, (blocks, 1))
    codes = torch.randint(0, 16, (blocks, BLOCK))
    layer = nn.Linear(IN, OUT, bias=False)
    layer.weight.data = (0.0007 * scales * codes - 0.0003 * least).view(OUT, IN)
    inputs = torch.randn(1, ROWS, IN)
    whole = layer(inputs)
    assert (packed(layer)(inputs) - whole).norm() < 0.001 * whole.norm()


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q8_0"])
def test_more_bits_than_four_stay_as_they_are(kind: str) -> None:
    assert four_bits(quantized(kind)) is None


@pytest.mark.parametrize(("outputs", "inputs"), [(OUT, IN + 8), (OUT + 1, IN)])
def test_a_shape_that_is_no_whole_number_of_blocks_stays_as_it_is(outputs: int, inputs: int) -> None:
    layer = nn.Linear(inputs, outputs)
    layer.weight.data.zero_()
    assert four_bits(layer) is None


def test_weights_that_were_never_quantized_stay_as_they_are() -> None:
    assert four_bits(nn.Linear(IN, OUT)) is None


@torch.inference_mode()
def test_no_rows_are_no_rows() -> None:
    layer = packed(quantized("Q4_0"))
    assert layer(torch.empty(0, 1, IN)).shape == (0, 1, OUT)
    assert layer(torch.empty(1, 0, IN)).shape == (1, 0, OUT)


def test_a_layer_takes_a_third_of_the_memory_and_its_weight_is_not_read_by_mistake() -> None:
    layer = packed(quantized("Q4_1"))
    held = sum(each.numel() * each.element_size() for each in layer.buffers())
    assert held == OUT * IN * 10 / 8
    assert layer.weight.shape == (OUT, IN)
    assert layer.weight.is_meta
