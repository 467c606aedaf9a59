"""Problems of the files of controls, by headers and configs: before they are loaded, and why one fits no checkpoint of
some kind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pipelines.catalog.file_kinds import IP_ADAPTER
from pipelines.catalog.folder_problems import part_problems, similar_names
from pipelines.catalog.own_parts import differences
from pipelines.catalog.weight_file import WeightFile
from pipelines.catalog.weight_headers import NO_PICKLES, PICKLES, WEIGHT_FILES, BrokenFile
from pipelines.families.generic import Config
from pipelines.protocol.images import Control

KEYS: Final = {"controlnet": "controlnets", "t2i-adapter": "t2i_adapters", "ip-adapter": "ip_adapters"}
WIDTHS: Final = ("cross_attention_dim", "joint_attention_dim")  # of U-Nets, and of transformers
UNION: Final = "ControlNetUnion"  # in the names of classes: networks for several kinds of maps


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
