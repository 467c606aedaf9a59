"""Parts that a catalog file puts in place of a checkpoint's own: where they are, and why one does not fit.

A part of another kind may load and draw something else, so the configs of both are compared.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pipelines.catalog.checkpoint_folder import default_variant, read_json
from pipelines.catalog.file_kinds import DENOISER, LANGUAGE_MODEL, TEXT_ENCODER, VAE, FileKind, part_by_class
from pipelines.catalog.folder_problems import part_problems, similar_names
from pipelines.catalog.pipeline_index import denoiser_name, is_component
from pipelines.catalog.weight_file import WeightFile
from pipelines.catalog.weight_headers import CheckpointError
from pipelines.families.generic import Config

FITTING: Final[Mapping[str, tuple[FileKind, ...]]] = {"vae": (VAE,), "denoiser": (DENOISER,)}  # kinds, by a part's key
OF_LATENTS: Final = ("scaling_factor", "shift_factor", "latents_mean", "latents_std")  # by which pipelines scale them
DEFAULTS: Final[Config] = {"scaling_factor": 0.18215}  # of diffusers' class; in older configs it is left out
OF_WIDTH: Final = ("latent_channels", "hidden_size", "d_model", "cross_attention_dim", "joint_attention_dim")
SCALES_ITSELF: Final = "AutoencoderTiny"


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
    """Return the weight files of such a part: of its folder, or the file itself."""
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
    architectures = config.get("architectures") or [""]
    kind = part_by_class(str(config.get("_class_name") or architectures[0]))
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
