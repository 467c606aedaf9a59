"""The libraries that a checkpoint lacks when it is loaded: by its configs before it, and by the errors after it."""

import importlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import diffusers

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.folder import CheckpointFolder
from pipelines.checkpoints.folder.libraries import (
    QUANTIZERS,
    how_to_install,
    missing_libraries,
    missing_quantizers,
    module_of,
    quantization_problems,
    quantized_parts,
)

NAMED: Final = (  # by what the libraries raise where one is missing
    re.compile(r"pip install (?:-\S+ )*['\"]?([A-Za-z][\w.-]*[A-Za-z0-9])"),
    re.compile(r"requires the (\w+) library"),
    re.compile(r"No module named '(\w+)"),
)
UNDEFINED: Final = re.compile(r"name '(\w+)' is not defined")


def import_quantizers(folder: CheckpointFolder, index: Mapping[str, Any]) -> None:
    """Import the packages by which parts of a folder are quantized: some make their method known by that. Raises
    CheckpointError for those that are missing, and for methods that nothing here loads."""
    if problem := next(quantization_problems(folder, index), None):
        raise CheckpointError(problem)
    if missing := missing_quantizers(folder, index):
        raise CheckpointError(missing_libraries_message(folder.path, str(index["_class_name"]), missing))
    for _, method in quantized_parts(folder, index):
        for library in QUANTIZERS.get(method, ()):
            try:
                importlib.import_module(module_of(library))
            except Exception as error:  # one of another version of torch, or without a device that it needs
                raise CheckpointError(f"{folder.path}: it needs {library}, which can't be imported: {error}") from error


def missing_libraries_message(path: Path, class_name: str, libraries: Iterable[str]) -> str:
    """Return the message for the operator: which libraries a checkpoint needs, and how to install them."""
    listed = list(libraries)
    return f"{path}: {class_name} needs {' and '.join(listed)}, not installed here: {how_to_install(listed)}"


def libraries_named_by(
    error: BaseException, path: Path, folder: CheckpointFolder, index: Mapping[str, Any]
) -> tuple[str, ...]:
    """Name the libraries that components need and that are not installed, by an error of the libraries that load
    them."""
    text = str(error)
    if "tiktoken" in text:  # transformers asks for that where it can't read a SentencePiece model, for whatever reason
        return missing_libraries(path, folder, index)
    if isinstance(error, ImportError) or "requires the" in text:
        found = next((match[1] for pattern in NAMED if (match := pattern.search(text))), None)
        return (found.lower(),) if found is not None else ()
    if isinstance(error, NameError) and (undefined := UNDEFINED.search(text)) is not None:
        is_optional = hasattr(diffusers.utils.import_utils, f"is_{undefined[1]}_available")
        return (undefined[1],) if is_optional else ()
    # an image processor without torchvision is a stand-in, which diffusers then fails to load
    return ("torchvision",) if "Placeholder" in text else ()
