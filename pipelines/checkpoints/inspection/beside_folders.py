"""One file of weights beside folders: which of them go with it, and what the two say together."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pipelines.checkpoints.classes.index import class_of, denoiser_name
from pipelines.checkpoints.classes.source import installed_pipelines
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.folder.folder import CheckpointFolder
from pipelines.checkpoints.folder.problems import SHARD
from pipelines.checkpoints.inspection.hints import named_class
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.header import Tensor
from pipelines.checkpoints.weight_file.layout import DENOISER_PREFIX, unread_prefixes
from pipelines.checkpoints.weight_file.sampling import BaseConfigs, FileSampling, read_file_sampling

MOST_VECTORS: Final = 0.01  # of a file's weights


def find_bases(file: WeightFile, folders: Iterable[CheckpointFolder]) -> list[CheckpointFolder]:
    """Return the diffusers folders that a file may be another training of: those whose denoiser has the same shapes.
    Where there are none, those with as many weights; then those that differ in a few vectors, such as a norm that
    nothing uses."""
    weights = file.denoiser_weights
    wanted = _count_rows(weights)
    found = [(folder, rows) for folder in folders if (rows := _count_rows(folder.denoiser))] if wanted else []
    same = [folder for folder, rows in found if rows == wanted]
    same = same or [folder for folder, rows in found if _count_weights(rows) == _count_weights(wanted)]
    return same or [
        folder for folder, rows in found if _is_near(wanted, rows) or _is_left_over(weights, _count_weights(rows))
    ]


def nearest_base(file: WeightFile, folders: Iterable[CheckpointFolder]) -> tuple[CheckpointFolder, int, int] | None:
    """Return the folder whose denoiser is nearest in size, with its weights and the file's. None if none is within a
    tenth, or has half of its tensors by their names and shapes."""
    tensors = file.denoiser_weights
    weights = sum(tensor.weights for tensor in tensors)
    if not file.is_single or weights == 0 or SHARD.search(file.path.name):
        return None  # nothing that could be named beside a folder
    named = {(tensor.name.removeprefix(DENOISER_PREFIX), tensor.shape) for tensor in tensors}
    found = []
    for folder in folders:
        own = sum(tensor.weights for tensor in folder.denoiser)
        common = sum((tensor.name, tensor.shape) in named for tensor in folder.denoiser)
        if folder.denoiser and (10 * abs(own - weights) <= weights or 2 * common >= len(named)):
            found.append((abs(own - weights), folder, own))
    if not found:
        return None
    _, nearest, own = min(found, key=lambda each: (each[0], each[1].path))
    return nearest, own, weights


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


def _is_near(one: Counter[int], other: Counter[int]) -> bool:
    """Return whether two models differ in a few numbers of vectors alone."""
    different = sum(width * abs(one[width] - other[width]) for width in one.keys() | other.keys())
    return different == abs(one[1] - other[1]) <= MOST_VECTORS * _count_weights(one)


def _is_left_over(weights: Sequence[Tensor], count: int) -> bool:
    """Return whether one vector of the file is all that a denoiser of `count` weights lacks."""
    more = sum(tensor.weights for tensor in weights) - count
    return more > 0 and any(len(tensor.shape) == 1 and tensor.weights == more for tensor in weights)


def size_mismatch(file: WeightFile, folder: CheckpointFolder) -> str | None:
    """Return the reason why a file can't be the denoiser of a folder, by the number of its weights; None if it may
    be."""
    weights, own = (sum(each.weights for each in tensors) for tensors in (file.denoiser_weights, folder.denoiser))
    if not weights or not own or nearest_base(file, [folder]) or max(weights, own) <= 2 * min(weights, own):
        return None
    name = folder.path.name
    return f"{file.path}: its denoiser has {weights:,} weights, and that of {name} {own:,}: they are not of one model"


def loads_all_components(file: WeightFile, folder: CheckpointFolder) -> bool:
    """Return whether the class of a folder's pipeline takes all that it can from a file with several components."""
    try:
        return file.has_other_components and installed_pipelines().loads_single_files(folder.index["_class_name"])
    except CheckpointError:
        return file.has_other_components


def inspect_file(files: CheckpointFiles, index: Mapping[str, Any]) -> tuple[FileSampling, tuple[str, ...]]:
    """Read the sampling that a single file names, with notes on the parts that are not used; nothing of a folder.
    Raises BrokenFile, and CheckpointError for values that can't be followed or read."""
    file, folder = files.file, files.folder
    if file is None:
        return FileSampling(), ()
    _check_is_denoiser(file, folder if files.is_base else None)
    quantization = file.denoiser_quantization if files.is_base else file.quantization
    if quantization.problem is not None:
        raise CheckpointError(quantization.problem)
    if folder is None:
        return FileSampling(), ()
    class_name, source = index.get("_class_name", ""), installed_pipelines()
    if not files.is_base and not source.loads_single_files(class_name):
        message = f"{class_name} can't be loaded from a single file; with {folder.path.name} as `base` its denoiser can"
        raise CheckpointError(f"{file.path}: {message}, beside the other parts of that folder")
    scheduler = {"_class_name": class_of(index.get("scheduler")), **folder.config("scheduler")}
    base = BaseConfigs(scheduler, folder.config("vae"), folder.config(denoiser_name(index)))
    sampling = read_file_sampling(file.path, file.header, base, source.scheduler_keys)
    if sampling.problems:
        raise CheckpointError("; ".join(f"{file.path}: {problem}" for problem in sampling.problems))
    unused = file.others if files.is_base else unread_prefixes(index, file.tensors)
    listed = " and ".join(f"{prefix}*" for prefix in unused)
    notes = (f"its {listed} are not used, but the parts of {folder.path.name}",) if unused else ()
    other = named_class(file.path.stem, class_name, source) if files.is_base else None
    if other is not None:
        notes = (*notes, f"its name is that of a {other}, and {folder.path.name} draws as a {class_name}: check it")
    return sampling, (*sampling.notes, *notes)


def _check_is_denoiser(file: WeightFile, folder: CheckpointFolder | None) -> None:
    """Check that a file is no other kind, such as an adapter; `folder` is its base. Raises CheckpointError and
    BrokenFile."""
    if not file.is_single or (folder is not None and find_bases(file, [folder])):
        return
    if file.kind is not None:
        raise CheckpointError(f"{file.path}: {file.kind}")
