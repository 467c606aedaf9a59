"""A pipeline's call, read from the source of the installed diffusers without importing it, which takes seconds.

Its family (pipelines/families) derives everything from a signature, so that the engine, which has the class, and the
checkpoint manager, which has its source, agree.
"""

import ast
import importlib.util
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter
from pathlib import Path
from typing import Any

from pipelines.catalog.conditioning import MODES
from pipelines.families.generic import Call
from pipelines.families.task import Task
from pipelines.protocol.images import CheckpointSpec
from pipelines.protocol.messages import Capabilities

COMPUTED = object()  # a default that is no constant


def announce(spec: CheckpointSpec, tasks: Container[Task], *, negative_prompt: bool, guidance: bool) -> Capabilities:
    """Return the capabilities that the pipeline classes announce, before they are tried."""
    return Capabilities(
        text=Task.TEXT in tasks,
        references=spec.max_references if MODES[spec.conditioning].task in tasks else 0,
        mask=Task.INPAINT in tasks,
        second_pass=Task.REDRAW in tasks or Task.INPAINT in tasks,
        negative_prompt=negative_prompt,
        guidance=guidance,
        any_steps=True,
    )


@dataclass(frozen=True)
class PipelineSource:
    """A library's pipelines, by default those of the installed diffusers."""

    folder: Path | None = field(default_factory=lambda: _installed("diffusers"))

    def parameters(self, class_name: str) -> Call | None:
        """Return the parameters of the class's call, its own or an inherited one; None if there is no such pipeline."""
        if (found := self._find(class_name)) is None:
            return None
        for node in found.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__call__":
                return _parameters(node)
        inherited = (self.parameters(base.id) for base in found.bases if isinstance(base, ast.Name))
        return next((parameters for parameters in inherited if parameters is not None), None)

    def methods(self, class_name: str) -> frozenset[str]:
        """Return the names of the class's methods, its own and those of the pipelines that it derives from."""
        if (found := self._find(class_name)) is None:
            return frozenset()
        own = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
        return frozenset(own).union(*(self.methods(base.id) for base in found.bases if isinstance(base, ast.Name)))

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
        found = self._find(class_name)
        if found is None:
            return frozenset()
        for node in found.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                arguments = node.args.args[1 : len(node.args.args) - len(node.args.defaults)]
                return frozenset(argument.arg for argument in arguments) | _optional_components(found)
        inherited = (self.components(base.id) for base in found.bases if isinstance(base, ast.Name))
        return frozenset[str]().union(*inherited) | _optional_components(found)

    def loads_single_files(self, class_name: str) -> bool:
        """Return whether the class, or one that it derives from, loads all components from one file."""
        found = self._find(class_name)
        bases = [base.id for base in found.bases if isinstance(base, ast.Name)] if found is not None else []
        return "FromSingleFileMixin" in bases or any(self.loads_single_files(base) for base in bases)

    def scheduler_keys(self, class_name: str) -> frozenset[str]:
        """Return the keys of a scheduler's config that the class takes, those of its constructor; none if there is no
        such class."""
        for file in sorted((self.folder / "schedulers").glob("*.py")) if self.folder is not None else ():
            text = file.read_text(encoding="utf-8")
            if f"class {class_name}(" in text:
                return frozenset(_constructor_names(ast.parse(text), class_name))
        return frozenset()

    def has(self, class_name: str) -> bool:
        """Return whether the library has a pipeline of this class."""
        return class_name in self._folders

    def _find(self, class_name: str) -> ast.ClassDef | None:
        if self.folder is None or class_name not in self._folders:
            return None
        folder = self.folder / "pipelines" / self._folders[class_name]
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
            text = file.read_text(encoding="utf-8") if file.is_file() else ""
            if f"class {class_name}(" in text:
                body = ast.parse(text).body
                return next(node for node in body if isinstance(node, ast.ClassDef) and node.name == class_name)
        return None

    @cached_property
    def _folders(self) -> Mapping[str, str]:
        """Return the folders of the pipeline classes, from the lists by which diffusers loads its modules."""
        if self.folder is None:
            return {}
        tree = ast.parse((self.folder / "pipelines" / "__init__.py").read_text(encoding="utf-8"))
        return dict(_listed(tree))


def _optional_components(found: ast.ClassDef) -> frozenset[str]:
    for node in found.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_optional_components":
            return frozenset(str(name) for name in ast.literal_eval(node.value))
    return frozenset()


def _constructor_names(tree: ast.AST, class_name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            own = (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
            yield from (argument.arg for init in own for argument in init.args.args if argument.arg != "self")


def _installed(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _listed(tree: ast.AST) -> Iterator[tuple[str, str]]:
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
        argument.arg: Parameter(argument.arg, Parameter.KEYWORD_ONLY, default=_constant(default))
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
