"""Which of a pipeline's components are in one file, by the names of its tensors: the denoiser alone, or others too."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pipelines.checkpoints.classes.index import component_names
from pipelines.checkpoints.classes.source import has_weights
from pipelines.checkpoints.weight_file.header import Tensor

DENOISER_PREFIX: Final = "model.diffusion_model."  # of its tensors in files that could have other components too
# What trainers leave before all names of a denoiser that was saved out of something else
WRAPPED_IN: Final = "module|_orig_mod|net|unet|transformer|diffusion_model"
WRAPPERS: Final = re.compile(rf"(({WRAPPED_IN})\.)+")
AVERAGE: Final = "model_ema."  # of the denoiser's weights over the training, which is not loaded
CODEC: Final = ("first_stage_model.", "vae.")
BESIDE: Final = (*CODEC, "cond_stage_model.", "conditioner.", "text_encoders.", "text_encoder.")
NOT_LOADED: Final = "safety_checker"  # the library leaves it out of what it loads from one file
SAYS: Final = re.compile(r"(.*\.)?(v_pred|ztsnr|scaled_fp8|edm_mean|edm_std|edm_vpred\.sigma_(max|min)|__\w+__)")


@dataclass(frozen=True, slots=True)
class TextEncoderNames:
    """How the tensors of a text encoder are named in files of several components."""

    start: str  # of all its names, that of a projection too
    inner: str  # what follows in the names of the model's own weights
    component: str
    model: Literal["CLIP-L", "CLIP-G", "T5"]
    open_clip: bool = False  # in the names of OpenCLIP; else in those of transformers
    unread_layers: int = 0  # the last ones, which the pipeline leaves out on purpose

    @property
    def prefix(self) -> str:
        """Return how the names of the model's own weights begin."""
        return self.start + self.inner


TEXT_ENCODERS: Final = (  # as the library goes by them
    TextEncoderNames("cond_stage_model.", "transformer.", "text_encoder", "CLIP-L"),
    TextEncoderNames("cond_stage_model.", "model.", "text_encoder", "CLIP-L", open_clip=True, unread_layers=1),
    TextEncoderNames("conditioner.embedders.0.transformer.", "", "text_encoder", "CLIP-L"),
    TextEncoderNames("text_encoders.clip_l.", "transformer.", "text_encoder", "CLIP-L"),
    TextEncoderNames("conditioner.embedders.0.model.", "", "text_encoder_2", "CLIP-G", open_clip=True),
    TextEncoderNames("conditioner.embedders.1.", "model.", "text_encoder_2", "CLIP-G", open_clip=True),
    TextEncoderNames("text_encoders.clip_g.", "transformer.", "text_encoder_2", "CLIP-G"),
    TextEncoderNames("text_encoders.t5xxl.", "transformer.", "text_encoder_3", "T5"),
)


def is_metadata_tensor(tensor: Tensor) -> bool:
    """Return whether a tensor is no weight, but a mark of the file: by its name, or since it has no values."""
    return tensor.weights == 0 or SAYS.fullmatch(tensor.name) is not None


def denoiser_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors of a single file that are its denoiser's."""
    listed = [tensor for tensor in tensors if not is_metadata_tensor(tensor)]
    return [tensor for tensor in listed if tensor.name.startswith(DENOISER_PREFIX)] or listed


def wrapper_prefix(names: Iterable[str]) -> str:
    """Return what stands before all names of a denoiser, such as "net."; an empty text if nothing does."""
    listed = list(names)
    found = WRAPPERS.match(listed[0]) if listed else None
    return found[0] if found is not None and all(name.startswith(found[0]) for name in listed) else ""


def component_prefixes(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """Return how the names of other components' tensors begin, such as "text_encoders.", in the file's order. A tensor
    without a dot in its name, such as the constants of a noise schedule, is no component's."""
    names = [tensor.name for tensor in tensors if not is_metadata_tensor(tensor)]
    if any(name.startswith(DENOISER_PREFIX) for name in names):
        others = (name for name in names if not name.startswith((DENOISER_PREFIX, AVERAGE)))
        return tuple(dict.fromkeys(f"{name.partition('.')[0]}." for name in others if "." in name))
    return tuple(prefix for prefix in BESIDE if any(name.startswith(prefix) for name in names))


def missing_parts(index: Mapping[str, Any], tensors: Sequence[Tensor], denoiser: str) -> tuple[str, ...]:
    """Return the components with weights, by model_index.json, that a file with several does not have, or that the
    library can't read from it: they are the folder's."""
    return tuple(
        name
        for name in component_names(index)
        if name not in {denoiser, NOT_LOADED}
        and has_weights(*index[name]) is not False
        and not _is_in(tensors, _prefixes(name, index[name][1]))
    )


def unread_prefixes(index: Mapping[str, Any], tensors: Sequence[Tensor]) -> tuple[str, ...]:
    """Return how the names of tensors begin that belong to no component of the pipeline as the library reads it."""
    read = tuple(prefix for name in component_names(index) for prefix in _prefixes(name, index[name][1]))
    others = [tensor for tensor in tensors if not (read and tensor.name.startswith(read))]
    return component_prefixes(others)


def _prefixes(component: str, class_name: str) -> tuple[str, ...]:
    """Return how a component's tensors begin in files that the library reads; nothing for a class that it does not."""
    if component == "vae":
        return CODEC
    if class_name.startswith("T5"):
        model = "T5"
    elif class_name == "CLIPTextModel" or (class_name, component) == ("CLIPTextModelWithProjection", "text_encoder"):
        model = "CLIP-L"
    elif class_name == "CLIPTextModelWithProjection":
        model = "CLIP-G"
    else:
        return ()
    return tuple(encoder.start for encoder in TEXT_ENCODERS if encoder.model == model)


def _is_in(tensors: Iterable[Tensor], prefixes: tuple[str, ...]) -> bool:
    return bool(prefixes) and any(tensor.name.startswith(prefixes) for tensor in tensors)
