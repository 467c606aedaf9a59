"""A pipeline of one file that has several components, with a folder of configs. Components that the file lacks are the
folder's."""

from pathlib import Path
from typing import Any

import diffusers
from diffusers.loaders.single_file import load_single_file_sub_model

from pipelines.checkpoints.classes.index import class_of, component_names, denoiser_name, is_text_encoder
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.layout import missing_parts
from pipelines.images.loading.parts import load_parts
from pipelines.images.loading.scaled_weights import load_unscaled


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
