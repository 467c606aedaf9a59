"""Which family a pipeline class is of. Every other module of this package is found: there is no list to keep."""

import importlib
import pkgutil
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache

import pipelines.families
from pipelines.families.generic import Family, Mark

GENERIC = Family()


@cache
def all_families() -> tuple[Family, ...]:
    """Return every family that has a file, by the file's name."""
    names = sorted(module.name for module in pkgutil.iter_modules(pipelines.families.__path__))
    modules = [importlib.import_module(f"{pipelines.families.__name__}.{name}") for name in names]
    return tuple(
        kind()
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Family) and kind.__module__ == module.__name__ and kind.classes
    )


@cache
def family_of(class_name: str | None) -> Family:
    """Return the family of a pipeline class by its name; the generic one for a class that no file names."""
    patterns = {pattern: family for family in all_families() for pattern in family.classes}
    matching = [pattern for pattern in patterns if fnmatchcase(class_name or "", pattern)]
    return patterns[max(matching, key=len)] if matching else GENERIC


@cache
def all_marks() -> Mapping[str, Mark]:
    """Return the marks by which single files name their training, by the tensor's name."""
    return {name: mark for family in all_families() for name, mark in family.marks.items()}
