"""Loading parts of one's own in place of a checkpoint's, by the library that has their class."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.folder.folder import read_json, single_variant
from pipelines.checkpoints.folder.versions import shortened
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.layout import CODEC, DENOISER_PREFIX
from pipelines.device.weight_names import TELLING, check_loaded, check_names, load_model
from pipelines.images.loading.parts import LIBRARIES
from pipelines.images.loading.single_file_names import match_weights
from pipelines.images.loading.single_files import load_unscaled
from pipelines.protocol.images import CheckpointSpec

PREFIXES = (*CODEC, DENOISER_PREFIX)  # in files of single parts, as they were cut out of whole ones


def load_own_parts(
    spec: CheckpointSpec, files: CheckpointFiles, options: Mapping[str, Any]
) -> tuple[dict[str, torch.nn.Module], list[str]]:
    """Load the parts that a catalog file names, by component. `files` are those of the checkpoint, whose folder has the
    configs of parts that are one file; `options` are the arguments of the pipeline's `from_pretrained`. Returns them,
    and notes for the operator. Raises CheckpointError."""
    folder, index = files.checked_folder.path, files.index
    quantization = options.get("quantization_config")
    methods = quantization.quant_mapping if quantization is not None else {}
    parts: dict[str, torch.nn.Module] = {}
    notes: list[str] = []
    for (name, path), (_, named) in zip(files.own_parts.items(), spec.parts, strict=True):
        method = {"quantization_config": methods[name]} if name in methods else {}
        load = _from_folder if path.is_dir() else _from_file
        parts[name], of_part = load(name, path, folder, index, options["torch_dtype"], method)
        notes += [f"{name} is {_as_named(named, spec)}, by its catalog file", *of_part]
    return parts, notes


def _as_named(path: Path, spec: CheckpointSpec) -> str:
    """Return a part's path as the catalog file has it: relative to the weights folder, from which the checkpoint has
    its name."""
    weights = shortened(spec.path).parents[len(Path(spec.name).parts) - 1]
    path = shortened(path)
    return str(path.relative_to(weights) if path.is_relative_to(weights) else path)


def _from_folder(
    name: str, path: Path, folder: Path, index: Mapping[str, Any], dtype: torch.dtype, method: Mapping[str, Any]
) -> tuple[torch.nn.Module, list[str]]:
    """Load a part's folder by the class that its config names; a text encoder by that of the pipeline, which may be the
    half of what is in there."""
    kind = _kind(name, str(read_json(path / "config.json").get("_class_name") or ""), index)
    key = "torch_dtype" if issubclass(kind, diffusers.ModelMixin) else "dtype"
    options: dict[str, Any] = {key: dtype, "variant": single_variant(path), **method}
    return load_model(kind, path, name, **options)


def _from_file(
    name: str, path: Path, folder: Path, index: Mapping[str, Any], dtype: torch.dtype, method: Mapping[str, Any]
) -> tuple[torch.nn.Module, list[str]]:
    """Load a part's file into a model with the config of the checkpoint's own part."""
    kind = _kind(name, "", index)
    weights = {_without_prefix(key): weight for key, weight in load_unscaled(WeightFile(path), dtype).items()}
    if not issubclass(kind, diffusers.ModelMixin):
        config = transformers.AutoConfig.from_pretrained(folder / name, local_files_only=True)
        config = config if isinstance(config, kind.config_class) else kind.config_class.from_pretrained(folder / name)
        part, info = kind.from_pretrained(None, config=config, state_dict=weights, dtype=dtype, **TELLING)
        return part.eval(), check_loaded(path, name, part, info)
    if not hasattr(kind, "from_single_file"):
        raise CheckpointError(f"{path}: {kind.__name__} can't be loaded from a single file; use its folder")
    found = match_weights(kind, folder, name, {key: tuple(weight.shape) for key, weight in weights.items()}, path)
    notes = check_names(path, name, found.model, found.missing, found.unused)
    if not found.converted:
        weights = {key: weight for key, weight in weights.items() if key not in found.unused}
    weights = {key: weight.reshape(found.shapes.get(key, tuple(weight.shape))) for key, weight in weights.items()}
    options = {"config": str(folder), "subfolder": name, "torch_dtype": dtype, "local_files_only": True, **method}
    part = kind.from_single_file(weights, **options)
    return part.eval(), notes


def _without_prefix(name: str) -> str:
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)


def _kind(name: str, class_name: str, index: Mapping[str, Any]) -> Any:
    """Return the class of a part: the one that its config names, else the pipeline's. Raises CheckpointError."""
    library, own = index[name]
    home = diffusers if class_name else getattr(diffusers.pipelines, str(library), None) or LIBRARIES.get(library)
    kind = getattr(home, class_name or str(own), None)
    if not isinstance(kind, type) or not hasattr(kind, "from_pretrained"):
        raise CheckpointError(f"{name}: {class_name or own} is no model of diffusers {diffusers.__version__}")
    return kind
