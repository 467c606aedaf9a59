"""One file of weights beside a folder: the sampling that it names, and its parts that are not used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.catalog.base_search import check_is_denoiser
from pipelines.catalog.call_signature import PipelineSource
from pipelines.catalog.checkpoint_files import CheckpointError, class_of, denoiser_name, read_config
from pipelines.catalog.file_layout import component_prefixes, unread_prefixes
from pipelines.catalog.file_sampling import BaseConfigs, FileSampling, read_file_sampling
from pipelines.catalog.name_hints import named_class
from pipelines.catalog.quantization import read_quantization
from pipelines.catalog.weight_headers import read_header


def inspect_file(
    path: Path, folder: Path | None, index: Mapping[str, Any], source: PipelineSource, *, is_base: bool
) -> tuple[FileSampling, tuple[str, ...]]:
    """Read the sampling that a single file names, with notes on the parts that are not used. Raises BrokenFile, and
    CheckpointError for values that can't be followed or read."""
    check_is_denoiser(path, folder if is_base else None)
    quantization = read_quantization(path, denoiser_alone=is_base)
    if quantization.problem is not None:
        raise CheckpointError(quantization.problem)
    if folder is None:
        return FileSampling(), ()
    class_name = index.get("_class_name", "")
    tensors = read_header(path).tensors
    if not is_base and not source.loads_single_files(class_name):
        message = f"{class_name} can't be loaded from a single file; with {folder.name} as `base` its denoiser can"
        raise CheckpointError(f"{path}: {message}, beside the other parts of that folder")
    scheduler = {"_class_name": class_of(index.get("scheduler")), **read_config(folder, "scheduler")}
    base = BaseConfigs(scheduler, read_config(folder, "vae"), read_config(folder, denoiser_name(dict(index))))
    file_sampling = read_file_sampling(path, base, source.scheduler_keys)
    if file_sampling.problems:
        raise CheckpointError("; ".join(f"{path}: {problem}" for problem in file_sampling.problems))
    unused = component_prefixes(tensors) if is_base else unread_prefixes(index, tensors)
    listed = " and ".join(f"{prefix}*" for prefix in unused)
    notes = (f"its {listed} are not used, but the parts of {folder.name}",) if unused else ()
    other = named_class(path.stem, class_name, source) if is_base else None
    if other is not None:
        notes = (*notes, f"its name is that of a {other}, and {folder.name} draws as a {class_name}: check it")
    return file_sampling, (*file_sampling.notes, *notes)
