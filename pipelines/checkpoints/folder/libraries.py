"""Which libraries a checkpoint's parts need beside those that are always there, and how to install them."""

import ast
import contextlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from pipelines.checkpoints.classes.index import class_of, component_names
from pipelines.checkpoints.classes.source import installed_folder
from pipelines.checkpoints.errors import BrokenFile
from pipelines.checkpoints.folder.folder import CheckpointFolder
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.quantization import REMEDY, is_packed
from pipelines.families.registry import family_of
from pipelines.protocol.machine import extra_command, packages_command

# Packages by quantization methods, as `quant_method` in a config names them: of a part, or of a chat checkpoint
QUANTIZERS: Final[Mapping[str, tuple[str, ...]]] = {
    "bitsandbytes": ("bitsandbytes",), "torchao": ("torchao",), "gguf": ("gguf",), "quanto": ("optimum-quanto",),
    "modelopt": ("nvidia-modelopt",), "auto-round": ("auto-round",), "sdnq": ("sdnq",), "awq": ("gptqmodel",),
    "gptq": ("optimum", "gptqmodel"), "hqq": ("hqq",), "compressed-tensors": ("compressed-tensors",),
    "quark": ("amd-quark",), "aqlm": ("aqlm",), "vptq": ("vptq",), "spqr": ("spqr-quant",), "sinq": ("sinq",),
}  # fmt: skip
REGISTERING: Final = frozenset({"sdnq"})  # methods that the libraries know once the method's package is imported
FROM_A_HUB: Final = frozenset({"nunchaku_lite", "nunchaku", "svdquant", "svdq", "eetq", "metal"})
SINGLE_FILES_ALONE: Final = frozenset({"bfl", "gguf"})
MODULES: Final = {
    "protobuf": "google.protobuf", "optimum-quanto": "optimum.quanto", "nvidia-modelopt": "modelopt",
    "auto-round": "auto_round", "compressed-tensors": "compressed_tensors", "amd-quark": "quark",
    "spqr-quant": "spqr_quant",
}  # fmt: skip  # where they have another name than for pip
EXTRAS: Final = {"gguf": "gguf", "torchvision": "vision", "sentencepiece": "vision", "protobuf": "vision"}


def missing_libraries(path: Path, folder: CheckpointFolder | None, index: Mapping[str, Any]) -> tuple[str, ...]:
    """List the libraries that a checkpoint's parts need and that are not installed, by the names that pip takes.
    `folder` has the parts."""
    return not_installed(needed_libraries(path, folder, index))


def missing_quantizers(folder: CheckpointFolder, index: Mapping[str, Any]) -> tuple[str, ...]:
    """List the packages that are not installed and without which a component's quantized weights can't be read, by the
    names that pip takes."""
    methods = (method for _, method in quantized_parts(folder, index))
    return not_installed(library for method in methods for library in QUANTIZERS.get(method, ()))


def not_installed(libraries: Iterable[str]) -> tuple[str, ...]:
    """List those of the libraries that are not installed, each once."""
    return tuple(library for library in dict.fromkeys(libraries) if not is_installed(library))


def how_to_install(libraries: Iterable[str]) -> str:
    """Return what adds these libraries to this installation: an extra of this package for those that one has."""
    listed = list(dict.fromkeys(libraries))
    extras = ",".join(dict.fromkeys(EXTRAS[library] for library in listed if library in EXTRAS))
    packages = [library for library in listed if library not in EXTRAS]
    commands = [*([extra_command(extras)] if extras else []), *([packages_command(packages)] if packages else [])]
    return "; and ".join(commands)


def quantized_parts(folder: CheckpointFolder, index: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the parts whose weights are quantized in their files, with the method."""
    for name in component_names(index):
        config = folder.config(name).get("quantization_config")
        if isinstance(config, dict):
            yield name, quantization_method(config)


def quantization_method(config: Mapping[str, Any]) -> str:
    """Return the method that a `quantization_config` names; an empty text if it names none."""
    of_bits = config.get("load_in_4bit") or config.get("load_in_8bit")
    return str(config.get("quant_method") or ("bitsandbytes" if of_bits else ""))


def quantization_problems(folder: CheckpointFolder, index: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts that nothing here can load, as messages."""
    quantized = dict(quantized_parts(folder, index))
    plain = (file for name in component_names(index) if name not in quantized for file in folder.files(name))
    yield from filter(None, map(_packed_weights, plain))
    for name, method in quantized.items():
        library, part = str(index[name][0]), f"{folder.path}/{name}"
        if method in FROM_A_HUB:
            why = "its kernels are code that is downloaded from a hub and run, and nothing here does that"
            hopper = (
                "" if method in {"eetq", "metal"} else "; GPUs of the Hopper kind (H100, H200) can't run them either"
            )
            yield f"{part}: quantized by {method}: {why}{hopper}. Take the bf16 or fp8 checkpoint"
        elif method in SINGLE_FILES_ALONE:
            yield f"{part}: quantized by {method}, which the installed {library} reads from single files alone"
        elif method not in REGISTERING and (known := _methods(library)) and method not in known:
            named = method or "a method without a name"
            yield f"{part}: quantized by {named}, which the installed {library} does not load"


def _packed_weights(file: WeightFile) -> str | None:
    """Return a message for weights of whole numbers, whose scales no config names: a library would take them as they
    are. Damaged files are left to others."""
    with contextlib.suppress(BrokenFile):
        if (packed := next(filter(is_packed, file.tensors), None)) is not None:
            named = f"{packed.name} is of {packed.dtype}"
            return f"{file.path}: {named}, and no quantization_config says of which scale: {REMEDY}"
    return None


def needed_libraries(path: Path, folder: CheckpointFolder | None, index: Mapping[str, Any]) -> Iterator[str]:
    """Yield the libraries that a checkpoint's parts need beside those that are always there, by the names that pip
    takes, some more than once."""
    if path.suffix == ".gguf":
        yield "gguf"
    yield from family_of(index.get("_class_name")).libraries
    if folder is None:
        return
    for _, method in quantized_parts(folder, index):
        yield from QUANTIZERS.get(method, ())
    for name in component_names(index):
        part, class_name = folder.path / name, class_of(index[name])
        if class_name.endswith("Processor") and not class_name.endswith("ImageProcessor"):
            yield "torchvision"
        has_model = any(part.glob("*.model"))
        if "Tokenizer" in class_name and has_model and not (part / "tokenizer.json").is_file():
            yield from ("sentencepiece", "protobuf")  # by which transformers reads it


def module_of(library: str) -> str:
    """Return the module that a package is imported by."""
    return MODULES.get(library, library)


def is_installed(library: str) -> bool:
    """Return whether a package or module is installed."""
    try:
        return importlib.util.find_spec(module_of(library)) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


@cache
def _methods(library: str) -> frozenset[str]:
    """Return the quantization methods that a library loads, from its table of their configs; none of another
    library."""
    folder = installed_folder(library) if library in {"diffusers", "transformers"} else None
    file = folder / "quantizers" / "auto.py" if folder is not None else None
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file is not None and file.is_file() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "AUTO_QUANTIZATION_CONFIG_MAPPING":
            names = (key.value for key in ast.walk(node.value) if isinstance(key, ast.Constant))
            return frozenset(str(name).removesuffix("_4bit").removesuffix("_8bit") for name in names)
    return frozenset()
