"""Linear layers that multiply in float8: `quantize = "fp8"`.

Weights are scaled by row (output feature) once, activations by row (token) at each call, both to the range of e4m3, as
in FP8 Formats for Deep Learning (https://arxiv.org/abs/2209.05433).
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from pipelines.checkpoints.memory.device_bytes import SENSITIVE
from pipelines.device.failures import first_line, require_device
from pipelines.device.staged_copy import StagedCopy

FORMAT: Final = torch.float8_e4m3fn
LARGEST: Final = torch.finfo(FORMAT).max
ALIGNMENT: Final = 16  # of both sides of a matrix, which the kernels need
MOST_OF_AN_ERROR: Final = 200  # characters of a compiler's message
CHECK_ROWS: Final = 64  # of random activations, by which a layer's error is measured
# Of layers whose weights a busy GPU may still have to read, so that it can't free them yet. Waiting after each layer
# would be waiting for a forward pass of whatever is drawn meanwhile, hundreds of times.
QUEUED_BYTES: Final = 2**29


class Fp8Linear(nn.Module):
    """A linear layer with float8 weights and activations, and the input's dtype outside."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, scale = _quantize(linear.weight.detach())
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.t().contiguous())
        self.bias = linear.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the layer: from inputs of shape (..., in_features) to (..., out_features)."""
        # a compiled block fuses torch's operations with what comes before them
        quantize = _quantize if torch.compiler.is_compiling() else _quantizer(inputs.device.type)[0]
        rows, scale = quantize(inputs.reshape(-1, self.in_features))
        bias = self.bias if self.bias is not None and self.bias.dtype == torch.bfloat16 else None
        product = _multiply(rows, self.weight.t(), scale, self.scale, bias)
        product = product.to(inputs.dtype).reshape(*inputs.shape[:-1], self.out_features)
        return product if self.bias is bias else product + self.bias


@dataclass(frozen=True, slots=True)
class Fp8Report:
    """The quantized layers, and each layer's error against its own weights: |fp8 - exact| / |exact| of its output."""

    layers: int
    left_out: int
    mean_error: float
    worst_error: float
    worst_layer: str
    note: str

    def __str__(self) -> str:
        return (
            f"fp8: {self.layers} linear layers, {self.left_out} left out; error of a layer's output "
            f"{self.mean_error:.1%} on average, {self.worst_error:.1%} at most ({self.worst_layer}){self.note}"
        )


def quantize_linears(denoiser: Any, device: torch.device) -> Fp8Report:
    """Replace the linear layers in place, one at a time. Each is moved to the device, where it is quantized and tried;
    the new one stays there, and nothing keeps the old one's weights. The others are left where they are.

    Raises ValueError if there is none that can be replaced.
    """
    count, names = len(_linears(denoiser)), list(suitable_linears(denoiser))
    if not names:
        raise ValueError("it has no linear layers for it")
    move = StagedCopy(device, device).move if device.type == "cuda" else (lambda layer: layer.to(device))
    widest = max(denoiser.get_submodule(name).in_features for name in names)
    check = torch.randn(CHECK_ROWS, widest, generator=torch.Generator().manual_seed(0)).to(device)
    errors: dict[str, torch.Tensor] = {}
    queued_bytes = 0
    for name in names:
        move(denoiser.get_submodule(name))
        queued_bytes += denoiser.get_submodule(name).weight.nbytes
        errors[name] = _replace_layer(denoiser, name, check)
        if queued_bytes > QUEUED_BYTES:
            errors[name].item()
            queued_bytes = 0
    measured = {name: float(error) for name, error in errors.items()}
    worst = max(measured, key=lambda name: measured[name])
    mean = sum(measured.values()) / len(measured)
    return Fp8Report(len(names), count - len(names), mean, measured[worst], worst, _quantizer(device.type)[1])


def _replace_layer(denoiser: Any, name: str, check: torch.Tensor) -> torch.Tensor:
    """Quantize a layer where its weights are. Returns the error of its output for the test input, which is as wide as
    the widest layer; reading it waits for the device."""
    layer: nn.Linear = denoiser.get_submodule(name)
    rows = check[:, : layer.in_features].to(layer.weight.dtype)
    quantized = Fp8Linear(layer)
    with torch.no_grad():
        exact = layer(rows).float()
        error: torch.Tensor = (quantized(rows).float() - exact).norm() / exact.norm().clamp(min=1e-12)
    denoiser.set_submodule(name, quantized)
    return error


def supports_scaled_matmul(device: torch.device) -> bool:
    """Return whether this torch multiplies float8 matrices with a scale for each row there. 2.11 does not on a CPU."""
    values = torch.zeros(ALIGNMENT, ALIGNMENT, device=device).to(FORMAT)
    scale = torch.ones(ALIGNMENT, 1, device=device)
    try:
        _multiply(values, values.t(), scale, scale.t(), None)
    except RuntimeError as error:  # such as cuBLAS without such a product for this GPU
        require_device(error, device)
        return False
    return True


def suitable_linears(denoiser: Any) -> dict[str, nn.Linear]:
    """Return the linear layers that may be replaced, by name."""
    patterns = getattr(denoiser, "_skip_layerwise_casting_patterns", None) or ()
    return {
        name: layer
        for name, layer in _linears(denoiser).items()
        if layer.in_features % ALIGNMENT == 0
        and layer.out_features % ALIGNMENT == 0
        and not SENSITIVE.search(name)
        and not any(re.search(pattern, name) for pattern in patterns)
    }


def _linears(denoiser: nn.Module) -> dict[str, nn.Linear]:
    return {name: layer for name, layer in denoiser.named_modules() if type(layer) is nn.Linear}


def _quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float8 values of shape (rows, features), and the float32 scale of each row, (rows, 1), to multiply them
    by. All of a row is computed in its own dtype, which is finer than float8; wider copies would cost more than the
    product saves."""
    least = torch.finfo(rows.dtype).tiny * torch.finfo(rows.dtype).eps
    scale = (rows.abs().amax(dim=-1, keepdim=True) / LARGEST).clamp(min=least)
    return (rows / scale).clamp(-LARGEST, LARGEST).to(FORMAT), scale.float()


def _multiply(
    rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return the product in bfloat16. It is summed in the tensor cores, whose sums have fewer bits than float32: on an
    H100 it takes 80 to 90 % of the time, and the error, which is that of the float8 values, stays 3.8 %."""
    return torch._scaled_mm(rows, weight, scale, weight_scale, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True)


@functools.cache
def _quantizer(kind: str) -> tuple[Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], str]:
    """Return what quantizes activations on devices of a kind, and a note. A GPU does it by one kernel where there is a
    compiler; torch's five take as long as the product saves."""
    if kind == "cpu":
        return _quantize, ""
    try:
        from pipelines.images.loading.fp8_kernel import quantize_rows

        quantize_rows(torch.ones(2, 2 * ALIGNMENT, dtype=torch.bfloat16, device=kind))
    except Exception as error:  # no Triton, no C compiler, an assembler newer than the driver: in many words
        require_device(error, torch.device(kind))
        why = first_line(error)[:MOST_OF_AN_ERROR]
        return _quantize, f"; activations are quantized without a compiler, which may be slower than 'none': {why}"
    return quantize_rows, ""
