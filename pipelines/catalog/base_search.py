"""Which of the folders here go with a single file: those whose denoiser has as many weights."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pipelines.catalog.call_signature import PipelineSource
from pipelines.catalog.checkpoint_files import (
    CheckpointError,
    default_variant,
    denoiser_name,
    find_snapshot,
    model_index,
)
from pipelines.catalog.file_layout import DENOISER_PREFIX, beside_denoiser, denoiser_tensors
from pipelines.catalog.quantization import read_quantization
from pipelines.catalog.weight_headers import BrokenFile, Tensor, read_header


def find_bases(file: Path, folders: Iterable[Path]) -> list[Path]:
    """Return the diffusers folders whose denoiser has as many weights as the file: it may be another training of
    theirs. Where there are none, those whose denoiser lacks one layer's weights of the file, such as a norm that
    nothing uses."""
    weights = _weights(file)
    counts = [(folder, sum(tensor.weights for tensor in _denoiser(folder))) for folder in folders]
    same = [folder for folder, count in counts if count and count == sum(tensor.weights for tensor in weights)]
    return same or [folder for folder, count in counts if count and _is_left_over(weights, count)]


def nearest_base(file: Path, folders: Iterable[Path]) -> tuple[Path, int, int] | None:
    """Return the folder whose denoiser is nearest in size, with its weights and the file's. None if none is within a
    tenth, or has half of its tensors by their names and shapes."""
    tensors = _weights(file)
    weights = sum(tensor.weights for tensor in tensors)
    named = {(tensor.name.removeprefix(DENOISER_PREFIX), tensor.shape) for tensor in tensors}
    found = []
    for folder in folders:
        denoiser = _denoiser(folder)
        apart = abs(sum(tensor.weights for tensor in denoiser) - weights)
        common = sum((tensor.name, tensor.shape) in named for tensor in denoiser)
        if denoiser and (10 * apart <= weights or 2 * common >= len(named)):
            found.append((apart, folder, sum(tensor.weights for tensor in denoiser)))
    return (*min(found)[1:], weights) if found else None


def is_whole(file: Path) -> bool:
    """Return whether a file has other components beside the denoiser."""
    try:
        return file.suffix == ".safetensors" and bool(beside_denoiser(read_header(file).tensors))
    except BrokenFile:
        return False


def loads_whole(file: Path, folder: Path) -> bool:
    """Return whether the class of a folder's pipeline takes all that it can from a file with several components."""
    try:
        return is_whole(file) and PipelineSource().loads_single_files(model_index(folder)["_class_name"])
    except CheckpointError:
        return is_whole(file)


def _weights(file: Path) -> Sequence[Tensor]:
    """Return the denoiser's tensors, without those that only say how it is quantized."""
    try:
        no_weights = read_quantization(file).dropped
        return [each for each in denoiser_tensors(read_header(file).tensors) if each.name not in no_weights]
    except BrokenFile:
        return []


def _is_left_over(weights: Sequence[Tensor], count: int) -> bool:
    """Return whether one vector of the file is all that a denoiser of `count` weights lacks."""
    more = sum(tensor.weights for tensor in weights) - count
    return more > 0 and any(len(tensor.shape) == 1 and tensor.weights == more for tensor in weights)


def _denoiser(folder: Path) -> list[Tensor]:
    """Return the tensors of a folder's denoiser; none of one that can't be read."""
    try:
        snapshot = find_snapshot(folder)
        files = default_variant(snapshot / denoiser_name(model_index(snapshot)))
        return [tensor for file in files for tensor in read_header(file).tensors]
    except (CheckpointError, BrokenFile):
        return []
