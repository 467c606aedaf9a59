"""Linear layers of a CPU with four bits a weight, as quantized files have them, in place of 32.

Blocks of 32 weights have one spacing and one first value, in half precision: GGUF's Q4_0, Q4_1 and Q4_K, and whatever
else has 16 evenly spaced values. The library multiplies a file's weights out when it loads it, so the blocks are found
in the values themselves: of every model, whatever its file names its tensors.

A layer has its weights twice, five bits each. In one order torch multiplies a few rows by them, in bfloat16 and with a
third of the memory's traffic: an answer's tokens, which are the same bits whoever else is answered at that step. In the
other order they are multiplied out for the pass over a prompt, which is computed in float32 as if they always had been.
"""

from typing import Final

import torch
from torch import nn

BLOCK: Final = 32  # weights
CODES: Final = 16
OUTPUTS: Final = 16  # whose multiples torch packs
TRIED: Final = 64  # blocks, before all of a layer
TOLERANCE: Final = 1 / 32  # of the spacing: that of Q4_K is rounded to half precision
NEGLIGIBLE: Final = 2**-14  # of a layer's greatest weight
OPERATIONS: Final = (
    (torch.ops.aten, "_convert_weight_to_int4pack_for_cpu"),
    (torch.ops.aten, "_weight_int4pack_mm_for_cpu"),
    (torch.ops.quantized, "embedding_bag_4bit_unpack"),
)
Blocks = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # codes [blocks, 32]; spacing, value of code 0 [blocks, 1]


class FourBitLinear(nn.Module):
    """A linear layer of blocks. `weight` has its type and shape, but no values that can be read."""

    def __init__(self, linear: nn.Linear, blocks: Blocks) -> None:
        super().__init__()
        codes, spacing, first = blocks
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        self.weight = nn.Parameter(torch.empty_like(linear.weight, device="meta"), requires_grad=False)
        nibbles = codes[:, 0::2] | (codes[:, 1::2] << 4)
        halves = (spacing.half().view(torch.uint8), first.half().view(torch.uint8))
        self.register_buffer("blocks", torch.cat([nibbles, *halves], dim=1), persistent=False)
        whole = codes.view(self.out_features, self.in_features).int()
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, 1)
        self.register_buffer("packed", packed, persistent=False)
        scales = torch.cat([spacing, first + CODES // 2 * spacing], dim=1).view(self.out_features, -1, 2)
        self.register_buffer("scales", scales.transpose(0, 1).contiguous().bfloat16(), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (..., out features) of (..., in features). Inputs of one token a row are a step of decoding."""
        if inputs.ndim == 3 and inputs.shape[1] == 1 and len(inputs):
            return self._decode(inputs[:, 0])[:, None]
        weight = torch.ops.quantized.embedding_bag_4bit_unpack(self.blocks).view(self.weight.shape)
        return nn.functional.linear(inputs, weight, self.bias)

    def _decode(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply rows [rows, in features]. A row's result does not depend on the others."""
        halves = rows.bfloat16().contiguous()
        product = torch.ops.aten._weight_int4pack_mm_for_cpu(halves, self.packed, BLOCK, self.scales)
        outputs: torch.Tensor = product.float()
        return outputs if self.bias is None else outputs + self.bias


def four_bits(linear: nn.Linear) -> FourBitLinear | None:
    """Return a layer of four bits with the same values; None if some block of them has no 16 evenly spaced ones."""
    if linear.in_features % BLOCK or linear.out_features % OUTPUTS or not _has_operations():
        return None
    values = linear.weight.detach().reshape(-1, BLOCK)
    if _find_blocks(values[:TRIED]) is None:
        return None
    blocks = _find_blocks(values)
    return None if blocks is None else FourBitLinear(linear, blocks)


def _has_operations() -> bool:
    return all(hasattr(place, name) for place, name in OPERATIONS)


def _find_blocks(values: torch.Tensor) -> Blocks | None:
    """Return the blocks of values [blocks, 32]. In a file of Q4_0 they lie around zero, the furthest -8 spacings off,
    of which one may be negative; in others each block has its least value, and the greatest is at most 15 off."""
    furthest = values.gather(1, values.abs().argmax(dim=1, keepdim=True))
    spacing = (furthest / (-CODES // 2)).half().float()
    first = -CODES // 2 * spacing
    slack = NEGLIGIBLE * values.abs().max()
    codes, fits = _on_grid(values, spacing, first, slack)
    if fits.all():
        return codes, spacing, first
    first, most = values.aminmax(dim=1, keepdim=True)
    left = torch.arange(len(values))
    for steps in range(CODES - 1, 0, -1):
        tried = ((most[left] - first[left]) / steps).half().float()
        found, fits = _on_grid(values[left], tried, first[left].half().float(), slack)
        codes[left[fits]], spacing[left[fits]] = found[fits], tried[fits]
        left = left[~fits]
        if not len(left):
            return codes, spacing, first
    return None


def _on_grid(
    values: torch.Tensor, spacing: torch.Tensor, first: torch.Tensor, slack: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of values, and of which blocks they give back the values."""
    codes = ((values - first) / spacing.where(spacing != 0, 1.0)).round_().clamp_(0, CODES - 1)
    errors = (codes * spacing + first - values).abs_()
    return codes.to(torch.uint8), (errors <= torch.maximum(TOLERANCE * spacing.abs(), slack)).all(dim=1)
