"""GGUF files of tiny denoisers, as their publishers write them."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch

Weights = Mapping[str, torch.Tensor]
Blocks = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def write_gguf(
    weights: Weights,
    blocks: Mapping[str, Blocks],
    kind: gguf.GGMLQuantizationType,
    path: Path,
    *,
    flattened: Mapping[str, list[int]] | None = None,
) -> Path:
    """Write a file with `blocks` in place of the weights with their names; the others as F32. `flattened` has the
    shapes of those that are stored in rows of another length, as ComfyUI's converter does with convolutions."""
    writer = gguf.GGUFWriter(path, "flux")
    for name, shape in (flattened or {}).items():
        writer.add_array(f"comfy.gguf.orig_shape.{name}", shape)
    for name, weight in weights.items():
        if name in blocks:
            writer.add_tensor(name, blocks[name], raw_dtype=kind)
        else:
            writer.add_tensor(name, weight.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def with_flattened_convolutions(weights: Weights, path: Path) -> Path:
    """Write a U-Net in Q8_0, its convolutions in rows of 32."""
    rows = {name: each for name, each in weights.items() if each.dim() == 2 and each.shape[1] % 32 == 0}
    convolutions = {name: each for name, each in weights.items() if each.dim() == 4 and each.numel() % 32 == 0}
    rows |= {name: each.reshape(-1, 32) for name, each in convolutions.items()}
    blocks = {name: gguf.quants.quantize(each.numpy().astype(np.float32), Q8_0) for name, each in rows.items()}
    shapes = {name: list(each.shape) for name, each in convolutions.items()}
    return write_gguf(weights, blocks, Q8_0, path, flattened=shapes)
