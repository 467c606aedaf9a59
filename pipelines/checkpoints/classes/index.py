"""model_index.json: the pipeline's class, and its components, settings and places to leave empty.

A component is [library, class], and a setting may be a list too. The index of a modular pipeline,
modular_model_index.json, names the repository on a hub where each component was published; components are read from the
checkpoint's own folder alone.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pipelines.checkpoints.errors import CheckpointError

INDEX: Final = "model_index.json"
MODULAR_INDEX: Final = "modular_model_index.json"
CLASS_NAME: Final = re.compile(r"[A-Z_]\w*")
LIBRARY: Final = re.compile(r"[A-Za-z_][\w.-]*")
# Components of steps that calls here don't take: prompts are drawn as they are sent
UNUSED: Final = re.compile(r"(^|_)(controlnet|prompt_(upsampler|enhancer)\w*|pe|pe_tokenizer)$|^image_encoder$")


def index_file(folder: Path) -> Path:
    """Return the index of a folder: model_index.json, or the one of a modular pipeline where there is no other."""
    modular = folder / MODULAR_INDEX
    return modular if modular.is_file() and not (folder / INDEX).is_file() else folder / INDEX


def model_index(folder: Path) -> dict[str, Any]:
    """Read model_index.json, or the index of a modular pipeline: the pipeline's class, and [library, class] of each
    component. Raises CheckpointError."""
    path = index_file(folder)
    try:
        index: dict[str, Any] = json.loads(path.read_text())
        name = index["_class_name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: no _class_name can be read from it") from error
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: _class_name names code of the checkpoint's own, which is not run")
    return plain_index(index)


def plain_index(index: Mapping[str, Any]) -> dict[str, Any]:
    """Return an index with each component as [library, class], without those of a modular one that no call here
    uses."""
    return {
        name: _library_and_class(entry)
        for name, entry in index.items()
        if not (_is_modular(entry) and UNUSED.search(name))
    }


def missing_part(folder: Path, name: str) -> str:
    """Describe a component that a folder's index names and that is not there, with the repository that has it."""
    file = index_file(folder)
    message = f"{folder}: {name}/ is missing, which {file.name} names"
    entry: Any = json.loads(file.read_text()).get(name)
    if not _is_modular(entry):
        return message
    source, within = entry[2].get("pretrained_model_name_or_path"), entry[2].get("subfolder")
    if not source:
        return message
    what = f"{within}/ of {source}" if within else str(source)
    return f"{message}: put the files of {what} into {folder / name}/, where it is looked for"


def is_component(entry: Any) -> bool:
    """Return whether an entry is a component, also one that is left out on purpose: [null, null]."""
    if not isinstance(entry, list) or len(entry) != 2:
        return False
    if entry[0] is None or entry[1] is None:
        return entry[0] is None or LIBRARY.fullmatch(str(entry[0])) is not None
    named = all(isinstance(each, str) for each in entry)
    return named and bool(LIBRARY.fullmatch(entry[0])) and bool(CLASS_NAME.fullmatch(entry[1]))


def is_left_out(entry: Any) -> bool:
    """Return whether an entry is a component that is left out on purpose."""
    return is_component(entry) and None in entry


def component_names(index: Mapping[str, Any]) -> list[str]:
    """List the components that model_index.json names, without those that are left out on purpose."""
    return [name for name, entry in index.items() if is_component(entry) and not is_left_out(entry)]


def denoiser_name(index: Mapping[str, Any]) -> str:
    """Return the name of the component that runs at every step."""
    return "unet" if "unet" in index else "transformer"


def is_text_encoder(component: str) -> bool:
    """Return whether a component reads prompts: text_encoder, text_encoder_2, ..."""
    return component.startswith("text_encoder")


def class_of(entry: Any) -> str:
    """Return the class that model_index.json has for a component; an empty text for another entry."""
    return str(entry[1]) if isinstance(entry, list) and len(entry) > 1 else ""


def _is_modular(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 3 and isinstance(entry[2], dict)


def _library_and_class(entry: Any) -> Any:
    """Return an entry as [library, class]: what was saved, or else the type that its block expects."""
    if not _is_modular(entry):
        return entry
    saved = list(entry[:2])
    return saved if None not in saved else list(entry[2].get("type_hint") or [None, None])
