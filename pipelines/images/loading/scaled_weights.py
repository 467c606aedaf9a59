"""Quantized weights of one file, multiplied by the scales beside them."""

import torch
from safetensors.torch import load_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.quantization import Scale

Weights = dict[str, torch.Tensor]


def load_unscaled(file: WeightFile, dtype: torch.dtype, *, denoiser_alone: bool = False) -> Weights:
    """Load all tensors of a safetensors file but those that belong to their quantization. Weights with scales have the
    dtype, and others are as in the file. With `denoiser_alone` the scales of others are left out. Raises BrokenFile,
    and CheckpointError for scales that can't be multiplied out."""
    quantization = file.denoiser_quantization if denoiser_alone else file.quantization
    if quantization.problem is not None:
        raise CheckpointError(quantization.problem)
    weights: Weights = load_file(file.path)
    for name, scale in quantization.scales.items():
        weights[name] = _apply_scale(weights[name], weights[scale.name], scale).to(dtype)
    return {name: weight for name, weight in weights.items() if name not in quantization.dropped}


def _apply_scale(weight: torch.Tensor, values: torch.Tensor, scale: Scale) -> torch.Tensor:
    """Return the weight times its scale in float32. Each value is repeated over its block; the last block of a side may
    be cut."""
    values = values.to(torch.float32)
    if values.numel() == 1:
        return weight.to(torch.float32) * values.reshape(())
    values = values.reshape([-(-size // block) for size, block in zip(weight.shape, scale.blocks, strict=True)])
    for side, (size, block) in enumerate(zip(weight.shape, scale.blocks, strict=True)):
        if 1 < block < size:
            values = values.repeat_interleave(block, dim=side).narrow(side, 0, size)
    return weight.to(torch.float32) * values
