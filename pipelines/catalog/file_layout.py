"""Which of a pipeline's components are in one file, by the names of its tensors: the denoiser alone, or others too."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pipelines.catalog.folder_problems import WITHOUT_WEIGHTS
from pipelines.catalog.weight_headers import Tensor

DENOISER_PREFIX: Final = "model.diffusion_model."  # of its tensors in files that could have other components too
AVERAGE: Final = "model_ema."  # of the denoiser's weights over the training, which is not loaded
CODEC: Final = ("first_stage_model.", "vae.")
CLIP_L: Final = ("cond_stage_model.", "conditioner.embedders.0.transformer.", "text_encoders.clip_l.")
CLIP_G: Final = ("conditioner.embedders.1.", "conditioner.embedders.0.model.", "text_encoders.clip_g.")
T5: Final = ("text_encoders.t5xxl.",)
BESIDE: Final = (*CODEC, "cond_stage_model.", "conditioner.", "text_encoders.", "text_encoder.")
NOT_LOADED: Final = "safety_checker"  # the library leaves it out of what it loads from one file
SAYS: Final = re.compile(r"(.*\.)?(v_pred|ztsnr|scaled_fp8|edm_mean|edm_std|edm_vpred\.sigma_(max|min)|__\w+__)")


def is_statement(tensor: Tensor) -> bool:
    """Whether it is no weight, but says something of the file: by its name, or since it has no values."""
    return tensor.weights == 0 or SAYS.fullmatch(tensor.name) is not None


def denoiser_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors of a single file that are its denoiser's."""
    listed = [tensor for tensor in tensors if not is_statement(tensor)]
    return [tensor for tensor in listed if tensor.name.startswith(DENOISER_PREFIX)] or listed


def beside_denoiser(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """Return how the names of other components' tensors begin, such as "text_encoders.", in the file's order. What has
    no dot in its name, such as the constants of a noise schedule, is no component's."""
    names = [tensor.name for tensor in tensors if not is_statement(tensor)]
    if any(name.startswith(DENOISER_PREFIX) for name in names):
        others = (name for name in names if not name.startswith((DENOISER_PREFIX, AVERAGE)))
        return tuple(dict.fromkeys(f"{name.partition('.')[0]}." for name in others if "." in name))
    return tuple(prefix for prefix in BESIDE if any(name.startswith(prefix) for name in names))


def missing_parts(index: Mapping[str, Any], tensors: Sequence[Tensor], denoiser: str) -> tuple[str, ...]:
    """Return the components with weights, by model_index.json, that a file with several does not have, or that the
    library can't read from it: they are the folder's."""
    return tuple(
        name
        for name, entry in index.items()
        if isinstance(entry, list)
        and len(entry) == 2
        and all(isinstance(each, str) for each in entry)
        and name not in {denoiser, NOT_LOADED}
        and not WITHOUT_WEIGHTS.search(entry[1])
        and not _is_in(tensors, _prefixes(name, entry[1]))
    )


def unread_prefixes(index: Mapping[str, Any], tensors: Sequence[Tensor]) -> tuple[str, ...]:
    """Return how the names of tensors begin that belong to no component of the pipeline as the library reads it."""
    listed = (entry for entry in index.items() if isinstance(entry[1], list) and len(entry[1]) == 2)
    read = tuple(prefix for name, entry in listed for prefix in _prefixes(name, str(entry[1])))
    others = [tensor for tensor in tensors if not (read and tensor.name.startswith(read))]
    return beside_denoiser(others)


def _prefixes(component: str, class_name: str) -> tuple[str, ...]:
    """Return how a component's tensors begin in files that the library reads; nothing for a class that it does not."""
    if component == "vae":
        return CODEC
    if class_name.startswith("T5"):
        return T5
    if class_name == "CLIPTextModel" or (class_name, component) == ("CLIPTextModelWithProjection", "text_encoder"):
        return CLIP_L
    return CLIP_G if class_name == "CLIPTextModelWithProjection" else ()


def _is_in(tensors: Iterable[Tensor], prefixes: tuple[str, ...]) -> bool:
    return bool(prefixes) and any(tensor.name.startswith(prefixes) for tensor in tensors)
