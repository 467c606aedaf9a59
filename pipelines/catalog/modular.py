"""The index of a modular pipeline, modular_model_index.json, in the form of model_index.json: what it says of a
component, without the repository on a hub where it was published. Components are read from the checkpoint's own folder
alone."""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from inspect import Parameter
from pathlib import Path
from typing import Any, Final

from pipelines.families.generic import Call

INDEX: Final = "model_index.json"
MODULAR_INDEX: Final = "modular_model_index.json"
INPUTS: Final = frozenset({"InputParam", "template"})  # calls by which blocks name an input


def index_file(folder: Path) -> Path:
    """Return the index of a folder: model_index.json, or the one of a modular pipeline where there is no other."""
    modular = folder / MODULAR_INDEX
    return modular if modular.is_file() and not (folder / INDEX).is_file() else folder / INDEX


def plain_index(index: Mapping[str, Any]) -> dict[str, Any]:
    """Return an index with each component as [library, class]."""
    return {name: _plain(entry) for name, entry in index.items()}


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


@cache
def modular_inputs(library: Path | None, class_name: str) -> Call:
    """Return the inputs of a modular pipeline's blocks, by the source of the library, whose folder this is: those of
    all ways through the blocks. None of them is required here. Nothing if there is no such class."""
    root = library / "modular_pipelines" if library is not None else None
    for folder in (
        sorted(each for each in root.iterdir() if each.is_dir()) if root is not None and root.is_dir() else ()
    ):
        texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py"))]
        if any(f"\nclass {class_name}(" in text for text in texts):
            names = {name for text in texts if "InputParam" in text for name in _inputs(ast.parse(text))}
            return {name: Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in sorted(names)}
    return {}


def other_output(class_name: str, inputs: Iterable[str]) -> str | None:
    """Return what a modular pipeline makes instead of images, as a sentence, by the names of its blocks' inputs."""
    names = list(inputs)
    if any("video" in name or name == "num_frames" for name in names):
        return f"{class_name} draws videos, and Darkroom images"
    return f"{class_name} makes sound, and Darkroom images" if any("audio" in name for name in names) else None


def _inputs(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        called = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and called in INPUTS:
            values = [*node.args[:1], *(each.value for each in node.keywords if each.arg == "name")]
            yield from (each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str))


def _is_modular(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 3 and isinstance(entry[2], dict)


def _plain(entry: Any) -> Any:
    """Return an entry as [library, class]: what was saved, or else the type that its block expects."""
    if not _is_modular(entry):
        return entry
    saved = list(entry[:2])
    return saved if None not in saved else list(entry[2].get("type_hint") or [None, None])
