"""What a checkpoint's files say without loading them: whether they are safe to load, its class, size and hashes."""

import hashlib
import io
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipelines.protocol.images import CheckpointSpec, Offload

PICKLES = ("*.bin", "*.ckpt", "*.pt", "*.pth", "*.pkl")
QUANTIZED_BYTES = {"float8": 1.0, "int8": 1.0, "int4": 0.6, "nf4": 0.6}  # of a weight, with its share of the scales
# model.safetensors, model.fp16.safetensors, model-00001-of-00002.safetensors, model.fp16-00001-of-00002.safetensors
WEIGHTS = re.compile(r"(?P<stem>[^.]+?)(?P<variant>\.[^.]+?)?(-\d{5}-of-\d{5})?\.safetensors")


class CheckpointError(Exception):
    """A checkpoint can't be served. The message names the file or key, and what would be right."""


def check_files(spec: CheckpointSpec) -> Path:
    """The folder with model_index.json, after the checks that need no loading. Raises CheckpointError."""
    try:
        spec.path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise CheckpointError(f"{spec.path}: there is no such checkpoint") from error
    except OSError as error:  # such as a name that is too long, or a folder that may not be entered
        raise CheckpointError(f"{str(spec.path)[:200]}: {error.strerror}") from error
    folder = spec.path if spec.path.is_dir() else spec.config
    if folder is None or (spec.path.is_file() and spec.path.suffix != ".safetensors"):
        raise CheckpointError(f"{spec.path}: neither a diffusers folder nor a .safetensors file with `config`")
    if not (folder / "model_index.json").is_file():
        raise CheckpointError(f"{folder}: no model_index.json, so this is no diffusers folder")
    if code := next(folder.rglob("*.py"), None):
        raise CheckpointError(f"{code}: checkpoints may not bring code; remove it if the pipeline works without")
    if spec.path.is_dir() and not any(folder.rglob("*.safetensors")):
        pickled = next((file for pattern in PICKLES for file in folder.rglob(pattern)), None)
        content = f"only pickles such as {pickled.name}, which can run code" if pickled else "no weights"
        raise CheckpointError(f"{folder}: {content}; convert the checkpoint to safetensors")
    return folder


def model_index(folder: Path) -> dict[str, Any]:
    """model_index.json: the pipeline's class, and [library, class] of each component. Raises CheckpointError."""
    path = folder / "model_index.json"
    try:
        index: dict[str, Any] = json.loads(path.read_text())
        name = index["_class_name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: no _class_name can be read from it") from error
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: _class_name names code of the checkpoint's own, which is not run")
    return index


def denoiser_name(index: dict[str, Any]) -> str:
    """The name of the component that runs at every step."""
    return "unet" if "unet" in index else "transformer"


def weight_files(spec: CheckpointSpec) -> dict[str, list[Path]]:
    """The .safetensors files that diffusers loads, by component. A single file counts as the denoiser."""
    index = model_index(check_files(spec))
    if spec.path.is_file():
        return {denoiser_name(index): [spec.path]}
    if missing := [part for part in _parts(index) if not (spec.path / part).is_dir()]:
        raise CheckpointError(f"{spec.path}: {missing[0]}/ is missing, which model_index.json names")
    return {part: files for part in _parts(index) if (files := _default_variant(spec.path / part))}


def find_variant(spec: CheckpointSpec) -> str | None:
    """The variant to load, such as "fp16", of a folder in which some component has no plain files. Else None.

    Raises CheckpointError where there are several to choose from.
    """
    if spec.path.is_file():
        return None
    parts = [[WEIGHTS.fullmatch(file.name) for file in files] for files in weight_files(spec).values()]
    variants = [{match["variant"] for match in part if match} for part in parts]
    lacking = [{variant[1:] for variant in part} for part in variants if part and None not in part]
    if not lacking:
        return None
    common = set.intersection(*lacking)
    if len(common) != 1:
        found = ", ".join(sorted(set.union(*lacking)))
        raise CheckpointError(f"{spec.path}: some components have no plain weights but the variants {found}; keep one")
    return common.pop()


def estimate_bytes(spec: CheckpointSpec, item_bytes: int) -> int:
    """Memory of the weights on the device at `item_bytes` a weight, from the headers of their files.

    Raises CheckpointError for files that can't be loaded.
    """
    quantized = {denoiser_name(model_index(check_files(spec))): QUANTIZED_BYTES.get(spec.runtime.quantize, item_bytes)}
    sizes = (
        [math.prod(tensor["shape"]) * quantized.get(part, item_bytes) for file in files for tensor in _tensors(file)]
        for part, files in weight_files(spec).items()
    )
    return device_bytes(sizes, spec.runtime.offload)


def device_bytes(parts: Iterable[Sequence[float]], offload: Offload) -> int:
    """The peak on the device, for components with tensors of these sizes."""
    listed = list(parts)
    total = sum(sum(tensors) for tensors in listed)
    match offload:
        case "none":
            return int(total)
        case "model":  # one component at a time
            return int(max((sum(tensors) for tensors in listed), default=0))
        case "group":  # one layer runs while the next one is copied
            return int(min(total, 2 * max((size for tensors in listed for size in tensors), default=0)))


def describe(spec: CheckpointSpec) -> str:
    """One line for the operator: class, components, size, and a hash over every weight file."""
    index = model_index(check_files(spec))
    files = sorted(file for part in weight_files(spec).values() for file in part)
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    size = sum(file.stat().st_size for file in files)
    types = "/".join(sorted({tensor["dtype"] for file in files for tensor in _tensors(file)}))
    parts = ", ".join(_parts(index))
    return f"{index['_class_name']} ({parts}), {size / 1e6:.1f} MB of {types}, sha256 {digest.hexdigest()[:16]}"


def _parts(index: dict[str, Any]) -> list[str]:
    return [name for name, entry in index.items() if isinstance(entry, list) and entry != [None, None]]


def _default_variant(folder: Path) -> list[Path]:
    """A component's files, without variants such as fp16 of files that are also there without one."""
    matches = [(file, WEIGHTS.fullmatch(file.name)) for file in sorted(folder.glob("*.safetensors"))]
    default = {match["stem"] for _, match in matches if match and not match["variant"]}
    return [file for file, match in matches if not (match and match["variant"] and match["stem"] in default)]


def _tensors(file: Path) -> Iterator[dict[str, Any]]:
    """The tensors in a file's header. The format begins with an 8-byte little-endian length and a JSON header."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
            size_bytes = stream.seek(0, io.SEEK_END)
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        expected_bytes = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointError(f"{file}: not a safetensors file, or a broken one") from error
    if size_bytes < expected_bytes:
        raise CheckpointError(f"{file}: truncated, it has {size_bytes:,} of {expected_bytes:,} bytes")
    yield from tensors
