"""The names in a single file against those of the models that diffusers fills from it.

Single files have the names of the original code, or those of diffusers. Its conversion drops names that it does not
know, and leaves empty those that it does not find. Here it converts stand-ins without memory first, which remember
where they are from: that reads headers alone.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import init_empty_weights
from diffusers.loaders.single_file_model import (
    SINGLE_FILE_LOADABLE_CLASSES,
    _get_single_file_loadable_mapping_class,
)
from torch.utils._pytree import tree_leaves

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.header import Tensor
from pipelines.checkpoints.weight_file.layout import CODEC, DENOISER_PREFIX, TEXT_ENCODERS, is_metadata_tensor
from pipelines.device.weight_names import check_names, uninitialized_weights

Shapes = Mapping[str, Sequence[int]]
NUMBER: Final = re.compile(r"\d+")
LACKING: Final = ""  # instead of a name in the file
MAX_LACKING: Final = 32  # each takes a conversion
DIVISIBLE: Final = (6, 1)  # into two or three parts, as fused weights are
LAYER: Final = re.compile(r"transformer\.resblocks\.(\d+)\.")


class StandIn(torch.Tensor):
    """A tensor without memory. It knows the names of the weights of a file that it was made of."""

    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, shape: Sequence[int]) -> "StandIn":
        """Make a tensor without memory, of this shape, whose origin is this name."""
        made = torch.empty(tuple(shape), device="meta").as_subclass(cls)
        made.origins = frozenset({name})
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        compute: Callable[..., Any] = super().__torch_function__
        result = compute(func, types, args, dict(kwargs or {}))
        origins = frozenset[str]().union(*(each.origins for each in _stand_ins((args, kwargs))))
        for made in _stand_ins(result):
            made.origins = origins
        return result


def _stand_ins(values: Any) -> list[StandIn]:
    return [each for each in tree_leaves(values) if isinstance(each, StandIn)]


@dataclass(frozen=True, slots=True)
class WeightsMatch:
    """The fit of a file's weights to a model: how they fill it."""

    model: torch.nn.Module  # without memory
    missing: frozenset[str]  # of the model's weights
    unused: frozenset[str]  # of the file's, without those that the library knows and drops
    converted: bool  # from the names of the original code
    shapes: Mapping[str, tuple[int, ...]]  # of the file's weights that are there in another shape of the same numbers
    linear: frozenset[str]  # of the file's, those that fill linear layers alone


def match_weights(kind: type[Any], folder: Path, part: str, shapes: Shapes, file: Path) -> WeightsMatch:
    """Compare a file's weights with a part that is built from the config in its folder. Raises CheckpointError if they
    are of another model."""
    config = kind.load_config(str(folder), subfolder=part, local_files_only=True)
    with init_empty_weights():
        model = kind.from_config(config)
    names = frozenset(model.state_dict())
    as_named = {name: StandIn.of(name, shape) for name, shape in shapes.items()}
    missing, unused = names - shapes.keys(), frozenset(shapes) - names
    best = WeightsMatch(model, missing, unused, False, *_find_reshaped(model, as_named))
    reason: Exception | None = None
    if best.missing:
        try:
            original = _fit_converted(model, kind, config, shapes)
        except Exception as error:  # the library raises anything for the names of another model
            reason = error
        else:
            best = min(best, original, key=lambda each: len(each.missing))
    if 2 * len(best.missing) > len(names):
        raise CheckpointError(
            f"{file}: its tensors are not those of a {kind.__name__} like {folder}/{part}: {len(best.missing)} of "
            f"{len(names)} weights are not in it, such as {min(best.missing)}"
        ) from reason
    return best


def _fit_converted(model: torch.nn.Module, kind: type[Any], config: Mapping[str, Any], shapes: Shapes) -> WeightsMatch:
    made, left = _convert(kind, config, shapes)
    names = model.state_dict().keys()
    filled = {name for name, weight in made.items() if weight is not None and LACKING not in weight.origins}
    used = _origins_of(made[name] for name in filled & names)
    dropped = shapes.keys() - _origins_of(made.values()) - _origins_of(left.values())  # taken out, and put nowhere
    missing = frozenset(name for name, _ in model.named_parameters() if name not in filled)
    return WeightsMatch(model, missing, frozenset(shapes.keys() - used - dropped), True, *_find_reshaped(model, made))


def _find_reshaped(
    model: torch.nn.Module, made: Mapping[str, StandIn | None]
) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
    """Return the shapes that a model needs of the file's weights that have another one of the same numbers, such as
    flattened convolutions, and the names of those that fill linear layers alone."""
    of_linear = {f"{name}.weight" for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)}
    shapes: dict[str, tuple[int, ...]] = {}
    linear: set[str] = set()
    others: set[str] = set()
    for name, weight in model.state_dict().items():
        if (found := made.get(name)) is None:
            continue
        (linear if name in of_linear else others).update(found.origins)
        is_same = found.shape == weight.shape or found.numel() != weight.numel()
        if not is_same and len(found.origins) == 1 and _is_flattened(found.shape, weight.shape):
            shapes[min(found.origins)] = tuple(weight.shape)
    return shapes, frozenset(linear - others)


def _is_flattened(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return whether a shape is another one without sides of 1, or with its last sides in one."""
    plain = [side for side in shape if side != 1]
    return plain == [side for side in wanted if side != 1] or (len(shape) == 2 and shape[0] == wanted[0])


def _convert(
    kind: type[Any], config: Mapping[str, Any], shapes: Shapes
) -> tuple[dict[str, StandIn | None], dict[str, StandIn]]:
    """Convert a file's weights as the library does. Returns the converted ones, and those that it leaves. Where it
    stops at one that the file lacks, it gets one of the same name in another layer: so all that are missing are
    found."""
    functions = SINGLE_FILE_LOADABLE_CLASSES[_get_single_file_loadable_mapping_class(kind)]
    alike = {NUMBER.sub("", name): shape for name, shape in shapes.items()}
    lacking: dict[str, Sequence[int]] = {}
    while True:
        left = {name: StandIn.of(name, shape) for name, shape in shapes.items()}
        left |= {name: StandIn.of(LACKING, shape) for name, shape in lacking.items()}
        try:
            return functions["checkpoint_mapping_fn"](config=config, checkpoint=left), left
        except KeyError as error:
            name = str(error.args[0])
            if name in lacking or len(lacking) == MAX_LACKING:
                raise
            lacking[name] = alike.get(NUMBER.sub("", name), DIVISIBLE)


def _origins_of(weights: Iterable[StandIn | None]) -> frozenset[str]:
    return frozenset[str]().union(*(weight.origins for weight in weights if weight is not None))


def check_headers(file: WeightFile, config: Path, models: Mapping[str, type[Any]]) -> list[str]:
    """Check the denoiser and codec in a whole checkpoint in one file, before it is loaded. `models` are the classes of
    its parts.

    Returns notes for the operator. Raises CheckpointError."""
    shapes = {tensor.name: tensor.shape for tensor in _weights(file)}
    notes: list[str] = []
    for part, kind in models.items():
        prefixes = re.compile("|".join(CODEC if part == "vae" else (DENOISER_PREFIX,)))
        own = {name: shape for name, shape in shapes.items() if prefixes.match(name)}
        if own and hasattr(kind, "from_single_file"):
            found = match_weights(kind, config, part, own, file.path)
            unused = {prefixes.sub("", name, 1) for name in found.unused}
            notes += check_names(file.path, part, found.model, found.missing, unused)
    known = (*CODEC, DENOISER_PREFIX, *(encoder.prefix for encoder in TEXT_ENCODERS))
    if others := [name for name in shapes if not name.startswith(known)]:
        notes.append(f"{len(others)} weights of the file are of no part, such as {min(others)}")
    return notes


def check_text_encoders(file: WeightFile, components: Mapping[str, Any]) -> list[str]:
    """Check which weights the text encoders of a whole checkpoint in one file lack, and do not use, after it was loaded
    and before its parts are moved. Returns notes for the operator. Raises CheckpointError."""
    names = [tensor.name for tensor in _weights(file)]
    notes: list[str] = []
    for part, model in components.items():
        if isinstance(model, torch.nn.Module):
            unused = {*_unused_layers(names, part, model), *_unused_names(names, part, model)}
            notes += check_names(file.path, part, model, uninitialized_weights(model), unused)
    return notes


def _weights(file: WeightFile) -> list[Tensor]:
    """Return the tensors that the library is given: marks of the file, and scales, are read before."""
    dropped = file.quantization.dropped
    return [tensor for tensor in file.tensors if tensor.name not in dropped and not is_metadata_tensor(tensor)]


def _unused_names(names: Sequence[str], part: str, model: torch.nn.Module) -> Iterator[str]:
    """Yield unused names of transformers, which has `text_model.` before them in some versions."""
    own = {name.removeprefix("text_model.") for name in model.state_dict()}
    for prefix in (each.prefix for each in TEXT_ENCODERS if each.component == part and not each.open_clip):
        inner = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
        yield from (name for name in inner if name.removeprefix("text_model.") not in own)


def _unused_layers(names: Sequence[str], part: str, model: Any) -> Iterator[str]:
    """Yield unused names of OpenCLIP: those of layers beyond those that the config has."""
    for encoder in (each for each in TEXT_ENCODERS if each.component == part and each.open_clip):
        most = model.config.num_hidden_layers + encoder.unread_layers
        layers = ((name, LAYER.search(name)) for name in names if name.startswith(encoder.prefix))
        yield from (name for name, match in layers if match is not None and int(match[1]) >= most)
