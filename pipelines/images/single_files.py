"""A denoiser alone in one file, beside a base folder that has the other components.

Three kinds: plain safetensors in diffusers' or the original names; float8, with or without scales beside the weights;
GGUF, whose weights stay quantized on the device, where diffusers' quantizer multiplies them out as they are used.
"""

from importlib.util import find_spec
from typing import Any

import torch
from diffusers.loaders.single_file_utils import SingleFileComponentError

from pipelines.catalog.checkpoint_files import CheckpointError, stored_as_float8
from pipelines.catalog.file_layout import DENOISER_PREFIX, SAYS
from pipelines.images.scaled_weights import load_unscaled
from pipelines.protocol.images import CheckpointSpec

ORIGINAL_UNET = "input_blocks."  # in the original names of U-Nets, which the library finds by that prefix alone


def load_denoiser(spec: CheckpointSpec, kind: type[Any], part: str, dtype: torch.dtype, quantization: Any) -> Any:
    """The file's weights in a model with the base's config. `part` is the denoiser's name, `quantization` the library's
    config for it, or None. Raises CheckpointError."""
    if not hasattr(kind, "from_single_file"):
        message = f"{kind.__name__} can't be loaded from a single file; use a diffusers folder"
        raise CheckpointError(f"{spec.path}: {message}")
    options = {"config": str(spec.base), "subfolder": part, "torch_dtype": dtype, "local_files_only": True}
    if spec.path.suffix == ".gguf":
        if find_spec("gguf") is None:
            message = "pip install --constraint constraints.txt --editable '.[gguf]'"
            raise CheckpointError(f"{spec.path} needs the library gguf, which is not installed: {message}")
        from diffusers import GGUFQuantizationConfig
        from diffusers.models.model_loading_utils import load_gguf_checkpoint

        source = named_for_library(load_gguf_checkpoint(str(spec.path)))
        quantization = GGUFQuantizationConfig(compute_dtype=dtype)
    else:
        source = named_for_library(load_unscaled(spec.path, dtype, denoiser_alone=True))
    try:
        denoiser = kind.from_single_file(source, quantization_config=quantization, **options)
    except (IndexError, KeyError, SingleFileComponentError) as error:  # of renaming tensors, where some are missing
        message = f"its tensors are not those of a {kind.__name__} like {spec.base}/{part}"
        raise CheckpointError(f"{spec.path}: {message}") from error
    if missing := [name for name, weight in denoiser.named_parameters() if weight.is_meta]:
        message = f"{len(missing)} weights of {spec.base}/{part} are not in it, such as {missing[0]}"
        raise CheckpointError(f"{spec.path}: {message}")
    if stored_as_float8(spec):
        denoiser.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype)
    return denoiser


def named_for_library(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The denoiser's weights alone, with the prefix if the library looks for it, else without."""
    names = [name for name in weights if not SAYS.fullmatch(name)]
    names = [name for name in names if name.startswith(DENOISER_PREFIX)] or names
    denoiser = {name.removeprefix(DENOISER_PREFIX): weights[name] for name in names}
    if any(name.startswith(ORIGINAL_UNET) for name in denoiser):
        return {DENOISER_PREFIX + name: weight for name, weight in denoiser.items()}
    return denoiser
