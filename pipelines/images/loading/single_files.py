"""A denoiser alone in one file, beside a base folder that has the other components.

Three kinds: plain safetensors in diffusers' or the original names; float8, with or without scales beside the weights;
GGUF, whose weights stay quantized on the device, where diffusers' quantizer multiplies them out as they are used.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.layout import DENOISER_PREFIX, SAYS, wrapper_prefix
from pipelines.device.weight_names import check_names
from pipelines.images.loading.needed_libraries import missing_libraries_message
from pipelines.images.loading.scaled_weights import load_unscaled
from pipelines.images.loading.single_file_names import WeightsMatch, match_weights

ORIGINAL_UNET = "input_blocks."  # in the original names of U-Nets, which the library finds by that prefix alone


def load_denoiser(
    file: WeightFile, config: tuple[Path, str], kind: type[Any], dtype: torch.dtype, quantization: Any
) -> tuple[Any, list[str]]:
    """Load the file's weights into a model of this class with a config: a folder, and the denoiser's name there.
    Returns it, and notes for the operator. `quantization` is the library's config for it, or None. Raises
    CheckpointError."""
    path, (base, part) = file.path, config
    if not hasattr(kind, "from_single_file"):
        message = f"{kind.__name__} can't be loaded from a single file; use a diffusers folder"
        raise CheckpointError(f"{path}: {message}")
    options = {"config": str(base), "subfolder": part, "torch_dtype": dtype, "local_files_only": True}
    if path.suffix == ".gguf":
        if find_spec("gguf") is None:
            raise CheckpointError(missing_libraries_message(path, "a .gguf file", ("gguf",)))
        from diffusers import GGUFQuantizationConfig
        from diffusers.models.model_loading_utils import load_gguf_checkpoint

        source = named_for_library(load_gguf_checkpoint(str(path)))
        quantization = GGUFQuantizationConfig(compute_dtype=dtype)
        stored = {tensor.name: torch.empty(tensor.shape, device="meta") for tensor in file.tensors}
        shapes = {name: tuple(weight.shape) for name, weight in named_for_library(stored).items()}
    else:
        source = named_for_library(load_unscaled(file, dtype, denoiser_alone=True))
        shapes = {name: tuple(weight.shape) for name, weight in source.items()}
    found = match_weights(kind, base, part, shapes, path)
    source = {name: _reshape_weight(weight, name, found, shapes[name], dtype) for name, weight in source.items()}
    unused = {name.removeprefix(DENOISER_PREFIX) for name in found.unused}
    notes = check_names(path, part, found.model, found.missing, unused)
    if not found.converted:  # with any other name the library would take all of them for those of the original code
        source = {name: weight for name, weight in source.items() if name not in found.unused}
    return kind.from_single_file(source, quantization_config=quantization, **options), notes


def _reshape_weight(
    weight: Any, name: str, found: WeightsMatch, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return a weight in the shape that the model has for it. GGUF's blocks are multiplied out unless they are whole
    rows of a linear layer, which alone can compute with them."""
    wanted = found.shapes.get(name, shape)
    is_of_blocks = hasattr(weight, "quant_type")
    stays = name in found.linear and tuple(weight.quant_shape) == wanted if is_of_blocks else weight.shape == wanted
    if is_of_blocks and not stays:
        from diffusers.quantizers.gguf.utils import dequantize_gguf_tensor

        weight = dequantize_gguf_tensor(weight).to(dtype).as_subclass(torch.Tensor)
    plain: torch.Tensor = weight if stays else weight.reshape(wanted)
    return plain


def named_for_library(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the denoiser's weights alone, with the prefix if the library looks for it, else without any."""
    names = [name for name in weights if not SAYS.fullmatch(name)]
    names = [name for name in names if name.startswith(DENOISER_PREFIX)] or names
    denoiser = {name.removeprefix(DENOISER_PREFIX): weights[name] for name in names}
    before = wrapper_prefix(denoiser)
    denoiser = {name.removeprefix(before): weight for name, weight in denoiser.items()}
    if any(name.startswith(ORIGINAL_UNET) for name in denoiser):
        return {DENOISER_PREFIX + name: weight for name, weight in denoiser.items()}
    return denoiser
