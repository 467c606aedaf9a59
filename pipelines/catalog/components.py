"""Which classes of components the installed libraries have, and which of these have weights.

The lists of diffusers say it, and the names of transformers' classes. Of classes that a pipeline's own module defines,
the component's folder shows it.
"""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Final

from pipelines.catalog.pipeline_index import CLASS_NAME

WITHOUT_WEIGHTS: Final = re.compile(r"Tokenizer|Processor|FeatureExtractor")  # as transformers ends its classes' names


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
