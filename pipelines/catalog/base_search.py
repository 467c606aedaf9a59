"""Which of the folders here go with a single file: those whose denoiser has weights of the same shapes."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pipelines.catalog.call_signature import PipelineSource
from pipelines.catalog.checkpoint_files import (
    SINGLE_FILES,
    CheckpointError,
    default_variant,
    denoiser_name,
    find_snapshot,
    model_index,
)
from pipelines.catalog.file_kinds import kind_by_header, other_kind_of
from pipelines.catalog.file_layout import DENOISER_PREFIX, component_prefixes, denoiser_tensors
from pipelines.catalog.folder_problems import SHARD
from pipelines.catalog.quantization import read_quantization
from pipelines.catalog.weight_headers import BrokenFile, Tensor, read_header

MOST_VECTORS: Final = 0.01  # of a file's weights


def find_bases(file: Path, folders: Iterable[Path]) -> list[Path]:
    """Return the diffusers folders that a file may be another training of: those whose denoiser has the same shapes.
    Where there are none, those with as many weights; then those that differ in a few vectors, such as a norm that
    nothing uses."""
    weights = _weights(file)
    wanted = _count_rows(weights)
    found = [(folder, rows) for folder in folders if (rows := _count_rows(_denoiser(folder)))] if wanted else []
    same = [folder for folder, rows in found if rows == wanted]
    same = same or [folder for folder, rows in found if _count_weights(rows) == _count_weights(wanted)]
    return same or [
        folder for folder, rows in found if _is_near(wanted, rows) or _is_left_over(weights, _count_weights(rows))
    ]


def nearest_base(file: Path, folders: Iterable[Path]) -> tuple[Path, int, int] | None:
    """Return the folder whose denoiser is nearest in size, with its weights and the file's. None if none is within a
    tenth, or has half of its tensors by their names and shapes."""
    tensors = _weights(file)
    weights = sum(tensor.weights for tensor in tensors)
    if file.suffix not in SINGLE_FILES or weights == 0 or SHARD.search(file.name):
        return None  # nothing that could be named beside a folder
    named = {(tensor.name.removeprefix(DENOISER_PREFIX), tensor.shape) for tensor in tensors}
    found = []
    for folder in folders:
        denoiser = _denoiser(folder)
        apart = abs(sum(tensor.weights for tensor in denoiser) - weights)
        common = sum((tensor.name, tensor.shape) in named for tensor in denoiser)
        if denoiser and (10 * apart <= weights or 2 * common >= len(named)):
            found.append((apart, folder, sum(tensor.weights for tensor in denoiser)))
    return (*min(found)[1:], weights) if found else None


def _count_rows(tensors: Iterable[Tensor]) -> Counter[int]:
    """Count the rows of all weights by their length: the same for a model in any naming, however its projections are
    fused, or its convolutions and sides of 1 are written. A vector is rows of one number."""
    rows: Counter[int] = Counter()
    for tensor in tensors:
        sides = [side for side in tensor.shape if side != 1] or [1]
        rows[math.prod(sides[1:])] += sides[0]
    return rows


def _count_weights(rows: Counter[int]) -> int:
    return sum(width * count for width, count in rows.items())


def _count_different_weights(one: Counter[int], other: Counter[int]) -> int:
    """Return how many weights are in one of two models alone."""
    return sum(width * abs(one[width] - other[width]) for width in one.keys() | other.keys())


def _is_near(one: Counter[int], other: Counter[int]) -> bool:
    """Return whether two models differ in a few numbers of vectors alone."""
    return _count_different_weights(one, other) == abs(one[1] - other[1]) <= MOST_VECTORS * _count_weights(one)


def check_is_denoiser(file: Path, folder: Path | None) -> None:
    """Check that a file is no other kind, such as an adapter; `folder` is its base. Raises CheckpointError and
    BrokenFile."""
    if file.suffix not in SINGLE_FILES or (folder is not None and find_bases(file, [folder])):
        return
    if (kind := other_kind_of(file)) is not None:
        raise CheckpointError(f"{file}: {kind}")


def size_mismatch(file: Path, folder: Path) -> str | None:
    """Return the reason why a file can't be the denoiser of a folder, by the number of its weights; None if it may
    be."""
    weights, own = _count_weights(_count_rows(_weights(file))), _count_weights(_count_rows(_denoiser(folder)))
    if not weights or not own or nearest_base(file, [folder]) or max(weights, own) <= 2 * min(weights, own):
        return None
    return f"{file}: its denoiser has {weights:,} weights, and that of {folder.name} {own:,}: they are not of one model"


def has_other_components(file: Path) -> bool:
    """Return whether a file has other components beside the denoiser."""
    try:
        header = read_header(file)
        return (
            file.suffix == ".safetensors"
            and bool(component_prefixes(header.tensors))
            and kind_by_header(header) is None
        )
    except BrokenFile:
        return False


def loads_all_components(file: Path, folder: Path) -> bool:
    """Return whether the class of a folder's pipeline takes all that it can from a file with several components."""
    try:
        return has_other_components(file) and PipelineSource().loads_single_files(model_index(folder)["_class_name"])
    except CheckpointError:
        return has_other_components(file)


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
    except CheckpointError:
        return []
