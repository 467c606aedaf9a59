"""What the classes of modular pipelines take and draw, by the source of the library."""

import ast
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

DOCUMENTED: Final = re.compile(r"^ +(\w+) \(`([^)]*)\)", re.MULTILINE)  # an input or an output
WORKFLOWS: Final[Mapping[str, Task]] = {  # ends of the names of ways through blocks -> what these draw
    "text2image": Task.TEXT,
    "image2image": Task.REDRAW,
    "img2img": Task.REDRAW,
    "image_conditioned": Task.NATIVE,
    "inpainting": Task.INPAINT,
}
MAP: Final = "control_image"  # an input of such a step


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
