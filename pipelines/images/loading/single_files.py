"""Single files: a denoiser alone beside a base folder that has the other components, or a pipeline of several
components with a folder of configs; quantized weights are multiplied by the scales beside them."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.loaders.single_file import load_single_file_sub_model
from safetensors.torch import load_file

from pipelines.checkpoints.classes.index import class_of, component_names, denoiser_name, is_text_encoder
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.layout import DENOISER_PREFIX, SAYS, missing_parts, wrapper_prefix
from pipelines.checkpoints.weight_file.quantization import Scale
from pipelines.device.weight_names import check_names
from pipelines.images.loading.needed_libraries import missing_libraries_message
from pipelines.images.loading.parts import load_parts
from pipelines.images.loading.single_file_names import WeightsMatch, match_weights

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


def load_whole(
    files: CheckpointFiles, file: WeightFile, pipeline_class: type[Any], options: dict[str, Any]
) -> tuple[Any, list[str]]:
    """Load the pipeline on the host, and return it with notes for the operator. `options` are those of from_pretrained,
    with components that are there already. Raises CheckpointError for weights that the folder's parts lack."""
    folder, index = files.checked_folder.path, files.index
    of_folder = missing_parts(index, file.tensors, denoiser_name(index))
    listed = {name: index[name] for name in of_folder}
    parts, notes = load_parts(folder, pipeline_class, listed, files.find_variant(), options)
    if file.quantization.scales:
        parts |= _of_scaled_file(file, folder, index, {**options, **parts})
    return pipeline_class.from_single_file(str(file.path), config=str(folder), **{**options, **parts}), notes


def _of_scaled_file(file: WeightFile, folder: Path, index: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Load the components in a file whose weights have scales beside them, which the library would not read."""
    weights = load_unscaled(file, options["torch_dtype"])
    others = (name for name in component_names(index) if name == "vae" or is_text_encoder(name))
    names = [denoiser_name(index), *others]
    return {
        name: load_single_file_sub_model(
            library_name=index[name][0], class_name=class_of(index[name]), name=name, checkpoint=weights,
            pipelines=diffusers.pipelines, is_pipeline_module=hasattr(diffusers.pipelines, index[name][0]),
            cached_model_config_path=str(folder), local_files_only=True, torch_dtype=options["torch_dtype"],
            **{key: options[key] for key in ("quantization_config",) if key in options},
        )
        for name in names
        if name not in options
    }  # fmt: skip


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
