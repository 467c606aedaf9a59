"""What can be told of a checkpoint from its files alone: whether it may be loaded, its class, its size, its hashes."""

import hashlib
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.types import CheckpointSpec

PICKLES = ("*.bin", "*.ckpt", "*.pt", "*.pth", "*.pkl")
QUANTIZED = {"none": 1.0, "float8": 0.5, "int8": 0.5, "int4": 0.3, "nf4": 0.3}  # of two-byte weights, scales included


class CheckpointError(Exception):
    """A checkpoint that can't be served: which file or key, and what would be right."""


def check_files(spec: CheckpointSpec) -> Path:
    """The folder with model_index.json, after what can be told without loading. Raises CheckpointError."""
    if not spec.path.exists():
        raise CheckpointError(f"{spec.path}: there is no such checkpoint")
    folder = spec.path if spec.path.is_dir() else spec.config
    if folder is None or (spec.path.is_file() and spec.path.suffix != ".safetensors"):
        raise CheckpointError(f"{spec.path}: neither a diffusers folder nor a .safetensors file with `config`")
    if not (folder / "model_index.json").is_file():
        raise CheckpointError(f"{folder}: no model_index.json, so this is no diffusers folder")
    if code := next(folder.rglob("*.py"), None):
        raise CheckpointError(f"{code}: checkpoints may not bring code; remove it if the pipeline works without")
    if spec.path.is_dir() and not any(folder.rglob("*.safetensors")):
        pickled = next((file for pattern in PICKLES for file in folder.rglob(pattern)), None)
        found = f"only pickles such as {pickled.name}, which can run code" if pickled else "no weights"
        raise CheckpointError(f"{folder}: {found}; convert the checkpoint to safetensors")
    return folder


def model_index(folder: Path) -> dict[str, Any]:
    """What model_index.json says: the pipeline's class, and [library, class] of each part. Raises CheckpointError."""
    path = folder / "model_index.json"
    try:
        index: dict[str, Any] = json.loads(path.read_text())
        name = index["_class_name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: no _class_name can be read from it") from error
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: _class_name names code of the checkpoint's own, which is not run")
    return index


def weight_files(spec: CheckpointSpec) -> list[Path]:
    """The .safetensors files that hold the weights."""
    return sorted(spec.path.rglob("*.safetensors")) if spec.path.is_dir() else [spec.path]


def estimate_bytes(spec: CheckpointSpec, item_bytes: int) -> int:
    """Memory that the weights will take at `item_bytes` a number, from the headers of their files.

    Raises CheckpointError for files that can't be loaded.
    """
    check_files(spec)
    numbers = sum(math.prod(tensor["shape"]) for file in weight_files(spec) for tensor in _tensors(file))
    return int(numbers * item_bytes * QUANTIZED[spec.runtime.quantize])


def describe(spec: CheckpointSpec) -> str:
    """One line for whoever swaps it in: class, parts, size, and a hash over every weight file."""
    index = model_index(check_files(spec))
    parts = [name for name, entry in index.items() if isinstance(entry, list) and entry != [None, None]]
    files = weight_files(spec)
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    size = sum(file.stat().st_size for file in files)
    types = "/".join(sorted({tensor["dtype"] for file in files for tensor in _tensors(file)}))
    return (
        f"{index['_class_name']} ({', '.join(parts)}), {size / 1e6:.1f} MB of {types}, sha256 {digest.hexdigest()[:16]}"
    )


def _tensors(file: Path) -> Iterator[dict[str, Any]]:
    """What a file says of its tensors: the format is an 8-byte little-endian length and a JSON header."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"{file}: not a safetensors file, or a broken one") from error
    for name, tensor in header.items():
        if name != "__metadata__":
            yield tensor
