"""Float8 products on a GPU: rows that one kernel quantizes, and layers near those of bfloat16."""

import os

import pytest
import torch

from pipelines.images.loading.fp8 import LARGEST, Fp8Linear, _quantizer

GPU = torch.device("cuda")
pytestmark = pytest.mark.skipif(
    "SIMULATED_GPUS" in os.environ or (torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9)),
    reason="a GPU with float8 products",
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1, 32), (7, 4096), (33, 4112), (300, 15360)], ids=str)
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
    rows = torch.randn(2, 100, 3072, device=GPU, dtype=dtype)
    with torch.inference_mode():
        exact, near = layer(rows), Fp8Linear(layer)(rows)
    assert near.dtype == dtype
    assert near.shape == exact.shape
    assert (near - exact).float().norm() / exact.float().norm() < 0.05
