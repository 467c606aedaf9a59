"""What a catalog file names beside a checkpoint: parts in place of its own, and controls; and why one does not fit.

A part of another kind may load and draw something else, so the configs of both are compared.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pipelines.checkpoints.classes.index import denoiser_name, is_component
from pipelines.checkpoints.errors import BrokenFile, CheckpointError
from pipelines.checkpoints.folder.folder import default_variant, read_json
from pipelines.checkpoints.folder.problems import part_problems, similar_names
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.header import NO_PICKLES, PICKLES, WEIGHT_FILES
from pipelines.checkpoints.weight_file.kinds import (
    DENOISER,
    IP_ADAPTER,
    LANGUAGE_MODEL,
    TEXT_ENCODER,
    VAE,
    FileKind,
    kind_by_config,
)
from pipelines.families.generic import Config
from pipelines.protocol.images import Control, ControlKind

FITTING: Final[Mapping[str, tuple[FileKind, ...]]] = {"vae": (VAE,), "denoiser": (DENOISER,)}  # kinds, by a part's key
OF_LATENTS: Final = ("scaling_factor", "shift_factor", "latents_mean", "latents_std")  # by which pipelines scale them
DEFAULTS: Final[Config] = {"scaling_factor": 0.18215}  # of diffusers' class; in older configs it is left out
OF_WIDTH: Final = ("latent_channels", "hidden_size", "d_model", "cross_attention_dim", "joint_attention_dim")
SCALES_ITSELF: Final = "AutoencoderTiny"
# By kind of control: its key in catalog files, with which fields of Capabilities begin too, and what people call it
KEYS: Final[Mapping[ControlKind, str]] = {
    "controlnet": "controlnets", "t2i-adapter": "t2i_adapters", "ip-adapter": "ip_adapters",
}  # fmt: skip
CALLED: Final = {"controlnet": "ControlNet", "t2i-adapter": "T2I-Adapter", "ip-adapter": "IP-Adapter"}
WIDTHS: Final = ("cross_attention_dim", "joint_attention_dim")  # of U-Nets, and of transformers
UNION: Final = "ControlNetUnion"  # in the names of classes: networks for several kinds of maps


def own_parts(parts: Iterable[tuple[str, Path]], index: Mapping[str, Any]) -> dict[str, Path]:
    """Return the paths of a catalog file's own parts, by the component that each replaces. Raises CheckpointError."""
    found = {}
    for key, path in parts:
        name = denoiser_name(index) if key == "denoiser" else key
        if not is_component(index.get(name)):
            raise CheckpointError(f"{key}: {index.get('_class_name')} has no {name}")
        try:
            found[name] = _own_part(key, path, name, index)
        except CheckpointError as error:
            raise CheckpointError(f"{key}: {error}") from error
    return found


def own_files(path: Path) -> list[WeightFile]:
    """Return the weight files of a part or a control: of its folder, or the file itself."""
    return default_variant(path) if path.is_dir() else [WeightFile(path)]


def _own_part(key: str, path: Path, name: str, index: Mapping[str, Any]) -> Path:
    """Return the folder or file of a part; of a whole checkpoint's folder, that of its part of this name."""
    if not path.exists():
        raise CheckpointError(f"{path}: there is no such folder or file{similar_names(path)}")
    if (path / "model_index.json").is_file():
        path = path / name
    fitting = FITTING.get(key, (TEXT_ENCODER, LANGUAGE_MODEL))
    library, own_class = index[name]
    if path.is_dir():
        config = read_json(path / "config.json")
        if (other := _other_kind(config, fitting)) is not None:
            raise CheckpointError(f"{path}: {other}")
        class_name = str(config.get("_class_name") or own_class or "")
        if key == "denoiser" and class_name != own_class:
            raise CheckpointError(f"{path}: a {class_name}, and the pipeline draws with a {own_class}")
        files = [file.path for file in default_variant(path)]
        if problem := next(part_problems(path, [str(library), class_name], files), None):
            raise CheckpointError(problem)
        return path
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{path}: neither a folder nor a .safetensors file")
    kind = WeightFile(path).kind
    if kind is not None and kind not in fitting:
        raise CheckpointError(f"{path}: {kind}")
    return path


def _other_kind(config: Config, fitting: tuple[FileKind, ...]) -> FileKind | None:
    """Return what the part in a folder is, by its config, if it is none of the fitting kinds."""
    kind = kind_by_config(config)
    return kind if kind is not None and kind.name not in {each.name for each in fitting} else None


def differences(new: Config, old: Config, folder: Path) -> Iterator[str]:
    """Yield why a part can't stand in place of another, the one in `folder`, by the values in both configs."""
    kind, own = str(new.get("_class_name", "")), str(old.get("_class_name", ""))
    keys = [key for key in OF_WIDTH if new.get(key) is not None and old.get(key) is not None]
    if "latent_channels" in keys and SCALES_ITSELF not in {kind, own}:
        keys += OF_LATENTS
    for key in keys:
        found, wanted = (each.get(key, DEFAULTS.get(key)) for each in (new, old))
        if found != wanted:
            yield f"its {key} is {found}, and that of {folder} {wanted}: it is of another kind of checkpoint"


def control_problem(control: Control, config: Config) -> str | None:
    """Return why a control can't be loaded, with the catalog's key; None if it can. `config` is a network's own."""
    if control.kind == "ip-adapter":
        found = ip_adapter_problem(control.path)
        if found is None and control.image_encoder is not None:
            found = next(_folder_problems(control.image_encoder, "transformers", "VisionModel"), None)
    else:
        found = next(_folder_problems(control.path, "diffusers", str(config.get("_class_name") or "")), None)
    return f"{KEYS[control.kind]}: {found}" if found is not None else None


def ip_adapter_problem(file: Path) -> str | None:
    """Return why a file can't be read as an IP-Adapter; None if it may be one."""
    if file.is_dir():
        return f"{file}: a folder: name the .safetensors file in it"
    if not file.is_file():
        return f"{file}: there is no such file{similar_names(file)}"
    if any(file.match(pattern) for pattern in PICKLES):
        return f"{file}: {NO_PICKLES}"
    found = WeightFile(file)
    try:
        tensors = found.tensors
    except BrokenFile as error:
        return str(error)
    if any("_lora." in tensor.name for tensor in tensors):
        return f"{file}: an IP-Adapter for faces (FaceID): it also changes the denoiser, and needs a face's embedding"
    return f"{file}: {found.kind}" if found.kind not in {None, IP_ADAPTER} else None


def _folder_problems(path: Path, library: str, class_name: str) -> Iterator[str]:
    if path.is_file():
        yield f"{path}: a file: name a {library} folder, which has a config.json"
    elif not path.is_dir():
        yield f"{path}: there is no such folder{similar_names(path)}"
    elif (path / "model_index.json").is_file() and not (path / "config.json").is_file():
        yield f"{path}: a whole checkpoint: name the folder of one network"
    else:
        yield from part_problems(path, [library, class_name], sorted(path.glob(WEIGHT_FILES)))


def why_it_does_not_fit(control: Control, config: Config, denoiser: Config, folder: Path) -> str | None:
    """Return why a network for maps can't go with a denoiser, by both configs; None if it may. `folder` has the
    denoiser."""
    class_name = str(config.get("_class_name") or "")
    if control.mode is None and (UNION in class_name or config.get("num_mode") is not None):
        return "it is for several kinds of maps: name the one of this table by `mode`"
    for key, other in (WIDTHS, reversed(WIDTHS)):
        if config.get(key) is not None and denoiser.get(key) is None and denoiser.get(other) is not None:
            return f"a {class_name}, which is for another kind of checkpoint"
    return next(differences(config, denoiser, folder), None)
