"""Float8 products on a GPU: rows that one kernel quantizes, and layers near those of bfloat16.

On the simulated GPU Triton's interpreter runs the kernel; tests/unit/engine/test_fp8_kernel.py compiles it.
"""

import importlib.util
import math

import pytest
import torch

from pipelines.images.loading.fp8 import LARGEST, Fp8Linear, _quantize, _quantizer

GPU = torch.device("cuda")
NAN, INFINITE = math.nan, math.inf
pytestmark = [
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9), reason="a GPU with float8 products"
    ),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton for this platform"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1, 32), (7, 4096), (9, 4112), (9, 15360)], ids=str)
def test_rows_are_quantized_as_the_formula_says(shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows = torch.randn(*shape, device=GPU).to(dtype)
    rows[0] = 0
    rows[-1] *= 100
    quantize, note = _quantizer("cuda")
    assert not note
    values, scales = quantize(rows)
    expected = rows.double().abs().amax(dim=1, keepdim=True) / LARGEST
    assert values.dtype == torch.float8_e4m3fn
    assert scales.shape == (shape[0], 1)
    assert torch.allclose(scales.double(), expected, rtol=1e-6, atol=1e-29)
    near = (values.double() * scales - rows).abs()
    assert (near <= rows.double().abs() / 16 * 1.001 + expected / 2**10 + 1e-29).all(), "half a step of three bits"
    turned = rows.t().contiguous().t()
    assert torch.equal(quantize(turned)[0].view(torch.uint8), values.view(torch.uint8)), "whatever their strides"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_near_its_own(dtype: torch.dtype, *, bias: bool) -> None:
    layer = torch.nn.Linear(3072, 512, bias=bias, device=GPU, dtype=dtype)
    if bias:
        torch.nn.init.normal_(layer.bias)
    rows = torch.randn(2, 20, 3072, device=GPU, dtype=dtype)
    with torch.inference_mode():
        exact, near = layer(rows), Fp8Linear(layer)(rows)
    assert near.dtype == dtype
    assert near.shape == exact.shape
    assert (near - exact).float().norm() / exact.float().norm() < 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("features", [1, 33, 4097])
def test_rows_that_have_no_numbers_and_extreme_ones_are_those_of_the_formula(dtype: torch.dtype, features: int) -> None:
    """What a row becomes, its values times its scale, is no number where it is none by torch's operations."""
    limits = torch.finfo(dtype)
    first = [0.0, -0.0, NAN, INFINITE, -INFINITE, limits.max, -limits.max, limits.tiny, limits.tiny * limits.eps]
    rows = torch.randn(2 * len(first), features, device=GPU).to(dtype)
    rows[: len(first)] = 0
    rows[: len(first), -1] = torch.tensor(first, device=GPU, dtype=dtype)
    rows[len(first) :, 0] = torch.tensor(first, device=GPU, dtype=dtype)
    rows[-1] = NAN
    quantize, note = _quantizer("cuda")
    assert not note
    made, expected = [(values.double() * scales.double()) for values, scales in (quantize(rows), _quantize(rows))]
    assert torch.equal(made.isnan(), expected.isnan())
    broken = ~rows.isfinite().all(dim=1)
    assert made[broken].isnan().any(dim=1).all()
    assert made[~broken].isfinite().all()
    most = rows[~broken].double().abs().amax(dim=1, keepdim=True)
    near = (made[~broken] - rows[~broken].double()).abs()
    assert (near <= rows[~broken].double().abs() / 16 * 1.001 + most / LARGEST / 2**10 + 1e-29).all()


@pytest.mark.parametrize("value", [NAN, INFINITE, -INFINITE])
def test_a_layer_makes_no_numbers_of_a_token_that_has_none(value: float) -> None:
    layer = Fp8Linear(torch.nn.Linear(64, 32, device=GPU, dtype=torch.bfloat16))
    tokens = torch.randn(1, 5, 64, device=GPU, dtype=torch.bfloat16)
    tokens[0, 3, 7] = value
    with torch.inference_mode():
        outputs = layer(tokens)[0]
    assert outputs[3].isnan().all()
    assert outputs[[0, 1, 2, 4]].isfinite().all()


def test_rows_of_a_larger_tensor_are_read_where_they_are() -> None:
    large = torch.randn(9, 200, device=GPU, dtype=torch.bfloat16)
    quantize, _ = _quantizer("cuda")
    for part in (large[::2], large[:, 3:67], large[1:8:3, ::2], large[:0]):
        values, scales = quantize(part)
        whole, of_whole = quantize(part.clone(memory_format=torch.contiguous_format))
        assert torch.equal(values.view(torch.uint8), whole.view(torch.uint8))
        assert torch.equal(scales, of_whole)
