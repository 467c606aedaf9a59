"""Modular pipelines, before they are loaded: their index, modular_model_index.json, in the form of model_index.json,
and what their classes take and draw, by the source of the library.

The index names the repository on a hub where each component was published. Components are read from the checkpoint's
own folder alone."""

import ast
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import Parameter
from pathlib import Path
from typing import Any, Final

from pipelines.families.generic import Call
from pipelines.families.registry import family_of
from pipelines.families.task import Task

INDEX: Final = "model_index.json"
MODULAR_INDEX: Final = "modular_model_index.json"
DOCUMENTED: Final = re.compile(r"^ +(\w+) \(`([^)]*)\)", re.MULTILINE)  # an input or an output
WORKFLOWS: Final[Mapping[str, Task]] = {  # ends of the names of ways through blocks -> what these draw
    "text2image": Task.TEXT,
    "image2image": Task.REDRAW,
    "img2img": Task.REDRAW,
    "image_conditioned": Task.NATIVE,
    "inpainting": Task.INPAINT,
}
# Components of steps that calls here don't take: prompts are drawn as they are sent
UNUSED: Final = re.compile(r"(^|_)(controlnet|prompt_(upsampler|enhancer)\w*|pe|pe_tokenizer)$|^image_encoder$")
MAP: Final = "control_image"  # an input of such a step


def index_file(folder: Path) -> Path:
    """Return the index of a folder: model_index.json, or the one of a modular pipeline where there is no other."""
    modular = folder / MODULAR_INDEX
    return modular if modular.is_file() and not (folder / INDEX).is_file() else folder / INDEX


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


@dataclass(frozen=True, slots=True)
class ModularClass:
    """The call of a modular pipeline, read from the documentation of its blocks, which the library generates from their
    code."""

    inputs: Call  # of all ways through the blocks
    outputs: frozenset[str]
    workflows: frozenset[str]  # names of the ways through the blocks, where their author names them

    @property
    def tasks(self) -> frozenset[Task]:
        """Return the tasks that the blocks draw."""
        return blocks_tasks(self.inputs, self.workflows)


def blocks_tasks(inputs: Call, workflows: Collection[str]) -> frozenset[Task]:
    """Return the tasks that blocks draw, by the names of their workflows, or by their inputs where they have none."""
    found = {task for name in workflows for end, task in WORKFLOWS.items() if name.endswith(end)}
    if workflows:
        return frozenset(found)
    if "image" not in inputs or inputs["image"].default is not Parameter.empty:
        found.add(Task.TEXT)
    if "image" in inputs:
        found.add(Task.REDRAW if "strength" in inputs else Task.NATIVE)
    return frozenset(found)


@cache
def modular_class(library: Path | None, class_name: str) -> ModularClass | None:
    """Return what a modular pipeline takes and draws, by the source of the library, whose folder this is; None if there
    is no such class."""
    root = library / "modular_pipelines" if library is not None else None
    for folder in sorted(root.iterdir()) if root is not None and root.is_dir() else ():
        texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py"))]
        if any(f"\nclass {class_name}(" in text for text in texts):
            nodes = (node for text in texts for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
            classes = {node.name: node for node in nodes}
            name = _constant(classes, class_name, "default_blocks_name")
            return _parse_docstring(classes, name) if name in classes else None
    return None


def _parse_docstring(classes: Mapping[str, ast.ClassDef], blocks: str) -> ModularClass:
    before, _, after = (ast.get_docstring(classes[blocks]) or "").partition("Inputs:")
    inputs, _, outputs = after.partition("Outputs:")
    found = {
        name: Parameter(name, Parameter.KEYWORD_ONLY, default=None if "optional" in kind else Parameter.empty)
        for name, kind in DOCUMENTED.findall(inputs)
        if name != MAP
    }
    if "guider" in before:  # its scale is no input of a block
        scale = family_of(blocks).guidance_argument
        found.setdefault(scale, Parameter(scale, Parameter.KEYWORD_ONLY, default=None))
    names = frozenset(name for name, _ in DOCUMENTED.findall(outputs))
    return ModularClass(found, names, frozenset(_constant(classes, blocks, "_workflow_map") or ()))


def _constant(classes: Mapping[str, ast.ClassDef], class_name: str, name: str) -> Any:
    """Return the value of an attribute of a class or of one that it derives from; None if there is none."""
    if (node := classes.get(class_name)) is None:
        return None
    for each in node.body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name:
            return ast.literal_eval(each.value)
    bases = (_constant(classes, base.id, name) for base in node.bases if isinstance(base, ast.Name))
    return next((found for found in bases if found is not None), None)


def _is_modular(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 3 and isinstance(entry[2], dict)


def _library_and_class(entry: Any) -> Any:
    """Return an entry as [library, class]: what was saved, or else the type that its block expects."""
    if not _is_modular(entry):
        return entry
    saved = list(entry[:2])
    return saved if None not in saved else list(entry[2].get("type_hint") or [None, None])
