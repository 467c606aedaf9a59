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
from pipelines.catalog.file_layout import beside_denoiser, denoiser_tensors
from pipelines.catalog.quantization import read_quantization
from pipelines.catalog.weight_headers import BrokenFile, Tensor, read_header


def find_bases(file: Path, folders: Iterable[Path]) -> list[Path]:
    """The diffusers folders whose denoiser has as many weights as the file: it may be another training of theirs. Where
    there are none, those whose denoiser lacks one layer's weights of the file, such as a norm that nothing uses."""
    weights = _weights(file)
    counts = [(folder, _denoiser_weights(folder)) for folder in folders]
    same = [folder for folder, count in counts if count and count == sum(tensor.weights for tensor in weights)]
    return same or [folder for folder, count in counts if count and _is_left_over(weights, count)]


def nearest_base(file: Path, folders: Iterable[Path]) -> tuple[Path, int, int] | None:
    """The folder whose denoiser is nearest in size, with its weights and the file's. None if none is within a tenth."""
    weights = sum(tensor.weights for tensor in _weights(file))
    counts = [(abs(count - weights), folder, count) for folder in folders if (count := _denoiser_weights(folder))]
    if not counts:
        return None
    apart, folder, count = min(counts)
    return (folder, count, weights) if 10 * apart <= weights else None


def is_whole(file: Path) -> bool:
    """Whether a file has other components beside the denoiser."""
    try:
        return file.suffix == ".safetensors" and bool(beside_denoiser(read_header(file).tensors))
    except BrokenFile:
        return False


def loads_whole(file: Path, folder: Path) -> bool:
    """Whether the class of a folder's pipeline takes all that it can from a file with several components."""
    try:
        return is_whole(file) and PipelineSource().loads_single_files(model_index(folder)["_class_name"])
    except CheckpointError:
        return is_whole(file)


def _weights(file: Path) -> Sequence[Tensor]:
    """The denoiser's, without what only says how they are quantized."""
    try:
        no_weights = read_quantization(file).dropped
        return [each for each in denoiser_tensors(read_header(file).tensors) if each.name not in no_weights]
    except BrokenFile:
        return []


def _is_left_over(weights: Sequence[Tensor], count: int) -> bool:
    """Whether one vector of the file is all that a denoiser of `count` weights lacks."""
    more = sum(tensor.weights for tensor in weights) - count
    return more > 0 and any(len(tensor.shape) == 1 and tensor.weights == more for tensor in weights)


def _denoiser_weights(folder: Path) -> int:
    try:
        snapshot = find_snapshot(folder)
        files = default_variant(snapshot / denoiser_name(model_index(snapshot)))
        return sum(tensor.weights for file in files for tensor in read_header(file).tensors)
    except (CheckpointError, BrokenFile):
        return 0
