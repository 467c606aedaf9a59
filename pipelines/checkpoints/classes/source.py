"""The classes of the installed diffusers, read from its source: importing them would take seconds.

A pipeline's family (pipelines/families) derives everything from the signature of its call, so that the engine, which
has the class, and the checkpoint manager, which has its source, agree.
"""

import ast
import importlib.util
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from inspect import Parameter
from pathlib import Path
from typing import Any, Final

from pipelines.checkpoints.classes.index import CLASS_NAME
from pipelines.families.generic import Call
from pipelines.families.registry import family_of
from pipelines.families.task import Task

WITHOUT_WEIGHTS: Final = re.compile(r"Tokenizer|Processor|FeatureExtractor")  # as transformers ends its classes' names
COMPUTED = object()  # a default that is no constant
GIVEN_UP = "DeprecatedPipelineMixin"
DOCUMENTED: Final = re.compile(r"^ +(\w+) \(`([^)]*)\)", re.MULTILINE)  # an input or an output
WORKFLOWS: Final[Mapping[str, Task]] = {  # ends of the names of ways through blocks -> what these draw
    "text2image": Task.TEXT,
    "image2image": Task.REDRAW,
    "img2img": Task.REDRAW,
    "image_conditioned": Task.NATIVE,
    "inpainting": Task.INPAINT,
}
MAP: Final = "control_image"  # an input of such a step


def has_weights(library: str, class_name: str) -> bool | None:
    """Return whether a component's class has weights; None if only its folder can show it."""
    if library == "transformers":
        return WITHOUT_WEIGHTS.search(class_name) is None
    return class_name in _models() if library == "diffusers" else None


def is_known(library: str, class_name: str) -> bool:
    """Return whether a library has a class; true of libraries other than diffusers, and of what prepares images, which
    no list has."""
    return library != "diffusers" or "Processor" in class_name or f'"{class_name}"' in _listed()


@cache
def _listed() -> str:
    """Return the text of the list from which diffusers loads its classes."""
    return (_library() / "__init__.py").read_text(encoding="utf-8")


def _library() -> Path:
    return installed_folder("diffusers") or Path()


def installed_folder(package: str) -> Path | None:
    """Return the folder of a package without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


@cache
def _models() -> frozenset[str]:
    """Return the names of the models of the installed diffusers, from the lists by which it loads its modules."""
    tree = ast.parse((_library() / "models" / "__init__.py").read_text(encoding="utf-8"))
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return frozenset(text for text in texts if CLASS_NAME.fullmatch(text))


@dataclass(frozen=True)
class PipelineSource:
    """A library's pipelines, by default those of the installed diffusers."""

    folder: Path | None = field(default_factory=lambda: installed_folder("diffusers"))

    def parameters(self, class_name: str) -> Call | None:
        """Return the parameters of the class's call, its own or an inherited one; None if there is no such pipeline."""
        found = self._method(class_name, "__call__")
        return None if found is None else _parameters(found)

    def constructor(self, class_name: str) -> Call:
        """Return the parameters of the class's constructor, which are its parts, with their types as text; none if
        there is no such pipeline."""
        found = self._method(class_name, "__init__")
        return {} if found is None else _parameters(found)

    def output_fields(self, class_name: str) -> frozenset[str]:
        """Return the names of the fields that the class's call fills in its output; none if the source does not say, as
        where a call returns what another pipeline returned."""
        found = self._method(class_name, "__call__")
        outputs = (
            node
            for node in (ast.walk(found) if found is not None else ())
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Output")
        )
        return frozenset(keyword.arg for output in outputs for keyword in output.keywords if keyword.arg)

    def ancestors(self, class_name: str) -> frozenset[str]:
        """Return the names of the classes that a pipeline derives from, up to the first that is no pipeline."""
        return frozenset(base for found in self._lineage(class_name) for base in _bases(found))

    def is_unmaintained(self, class_name: str) -> bool:
        """Return whether the library keeps the class without maintaining it."""
        folder = self._folders.get(class_name, "")
        return folder.startswith("deprecated") or GIVEN_UP in self.ancestors(class_name)

    def methods(self, class_name: str) -> frozenset[str]:
        """Return the names of the class's methods, its own and those of the pipelines that it derives from."""
        return frozenset(method.name for method in self._methods(class_name))

    def default_sample_size(self, class_name: str) -> int | None:
        """Return the side in latents that the class draws unless it is told: a constant of its constructor. None if
        there is no such constant."""
        found = self._find(class_name)
        for node in ast.walk(found) if found is not None else ():
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                value = node.value.orelse if isinstance(node.value, ast.IfExp) else node.value
                is_constant = isinstance(value, ast.Constant) and isinstance(value.value, int)
                if node.targets[0].attr == "default_sample_size" and is_constant:
                    return int(ast.literal_eval(value))
        return None

    def components(self, class_name: str) -> frozenset[str]:
        """Return the names of the components that the class's constructor takes, as diffusers tells them from settings:
        they have no default, or are listed as optional."""
        return self.required_components(class_name) | self._optional(class_name)

    def _optional(self, class_name: str) -> frozenset[str]:
        return frozenset().union(*map(_optional_components, self._lineage(class_name)))

    def required_components(self, class_name: str) -> frozenset[str]:
        """Return the names of the components without which the class is not made, as diffusers tells them."""
        required = (name for name, each in self.constructor(class_name).items() if each.default is Parameter.empty)
        return frozenset(required) - self._optional(class_name)

    def loads_single_files(self, class_name: str) -> bool:
        """Return whether the class, or one that it derives from, loads all components from one file."""
        return "FromSingleFileMixin" in self.ancestors(class_name)

    def scheduler_keys(self, class_name: str) -> frozenset[str]:
        """Return the keys of a scheduler's config that the class takes, those of its constructor; none if there is no
        such class."""
        for file in sorted((self.folder / "schedulers").glob("*.py")) if self.folder is not None else ():
            is_in = f"class {class_name}(" in file.read_text(encoding="utf-8")
            if is_in and (found := _classes(file).get(class_name)) is not None:
                made = (each for each in found.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
                return frozenset(each.arg for init in made for each in init.args.args if each.arg != "self")
        return frozenset()

    def has(self, class_name: str) -> bool:
        """Return whether the library has a pipeline of this class."""
        return class_name in self._folders

    def _method(self, class_name: str, method: str) -> ast.FunctionDef | None:
        """Return the class's method, its own or an inherited one."""
        return next((each for each in self._methods(class_name) if each.name == method), None)

    def _methods(self, class_name: str) -> Iterator[ast.FunctionDef]:
        for found in self._lineage(class_name):
            yield from (node for node in found.body if isinstance(node, ast.FunctionDef))

    def _lineage(self, class_name: str) -> Iterator[ast.ClassDef]:
        """Yield the class and the pipelines that it derives from, each before its own bases."""
        if (found := self._find(class_name)) is not None:
            yield found
            for base in _bases(found):
                yield from self._lineage(base)

    def _find(self, class_name: str) -> ast.ClassDef | None:
        if self.folder is None or class_name not in self._folders:
            return None
        folder = self.folder / "pipelines" / self._folders[class_name]
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
            if file.is_file() and f"class {class_name}(" in file.read_text(encoding="utf-8"):
                return _classes(file).get(class_name)
        return None

    @cached_property
    def _folders(self) -> Mapping[str, str]:
        """Return the folders of the pipeline classes, from the lists by which diffusers loads its modules."""
        if self.folder is None:
            return {}
        tree = ast.parse((self.folder / "pipelines" / "__init__.py").read_text(encoding="utf-8"))
        return dict(_listed_classes(tree))


@cache
def installed_pipelines() -> PipelineSource:
    """Return the pipelines of the installed diffusers, whose source is read once."""
    return PipelineSource()


def _bases(found: ast.ClassDef) -> list[str]:
    return [base.id for base in found.bases if isinstance(base, ast.Name)]


def _optional_components(found: ast.ClassDef) -> frozenset[str]:
    for node in found.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_optional_components":
            return frozenset(str(name) for name in ast.literal_eval(node.value))
    return frozenset()


@lru_cache(maxsize=4)  # a syntax tree has megabytes
def _classes(file: Path) -> Mapping[str, ast.ClassDef]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def _listed_classes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the listed classes with their folders, from `_import_structure["x"] = ["XPipeline", ...]`, and
    `.extend([...])`."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(folder)))], value=ast.List(elts=names)):
                pass
            case ast.Call(
                func=ast.Attribute(value=ast.Subscript(slice=ast.Constant(value=str(folder)))),
                args=[ast.List(elts=names)],
            ):
                pass
            case _:
                continue
        yield from ((str(name.value), folder) for name in names if isinstance(name, ast.Constant))


def _parameters(call: ast.FunctionDef) -> Call:
    positional = [*call.args.posonlyargs, *call.args.args]
    defaults: list[ast.expr | None] = [*[None] * (len(positional) - len(call.args.defaults)), *call.args.defaults]
    pairs = [*zip(positional, defaults, strict=True), *zip(call.args.kwonlyargs, call.args.kw_defaults, strict=True)]
    return {
        argument.arg: Parameter(
            argument.arg,
            Parameter.KEYWORD_ONLY,
            default=_constant(default),
            annotation=Parameter.empty if argument.annotation is None else ast.unparse(argument.annotation),
        )
        for argument, default in pairs
        if argument.arg != "self"
    }


def _constant(default: ast.expr | None) -> Any:
    if default is None:
        return Parameter.empty
    try:
        return ast.literal_eval(default)
    except ValueError:
        return COMPUTED


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
            name = _attribute(classes, class_name, "default_blocks_name")
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
    return ModularClass(found, names, frozenset(_attribute(classes, blocks, "_workflow_map") or ()))


def _attribute(classes: Mapping[str, ast.ClassDef], class_name: str, name: str) -> Any:
    """Return the value of an attribute of a class or of one that it derives from; None if there is none."""
    if (node := classes.get(class_name)) is None:
        return None
    for each in node.body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name:
            return ast.literal_eval(each.value)
    bases = (_attribute(classes, base.id, name) for base in node.bases if isinstance(base, ast.Name))
    return next((found for found in bases if found is not None), None)
