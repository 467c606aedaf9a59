"""What the files of a chat checkpoint say without loading it: whether it sees images, how its makers sample from it,
and the memory that it takes."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from pipelines.checkpoints.errors import BrokenFile
from pipelines.checkpoints.folder.folder import read_json
from pipelines.checkpoints.folder.libraries import QUANTIZERS, is_installed, not_installed, quantization_method
from pipelines.checkpoints.memory.device_bytes import quantized_bytes
from pipelines.checkpoints.weight_file.header import WEIGHT_FILES, Tensor, read_header
from pipelines.protocol.images import Quantize

GGUF: Final = ".gguf"
ORIGINAL: Final = "consolidated"  # weights of Mistral's once more, under names of its own
MLX: Final = "mlx"  # which names itself nowhere in a config
MXFP4_BYTES: Final = 17 / 32  # of a weight in the file; without a kernel for it the library makes two bytes of it
FLOAT8: Final = frozenset({"fp8", "mxfp8"})  # methods, for which the library takes kernels from the package `kernels`
KEPT: Final = re.compile(r"embed|lm_head|(^|\.)vision|visual")  # of weights that are quantized while they are loaded
PROCESSORS: Final = ("preprocessor_config.json", "processor_config.json")
SAMPLING_BOUNDS: Final = {  # by field of `ChatSampling`
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}
OF_A_HUB: Final = {"eetq": ("kernels",)}  # as `QUANTIZERS`, of kernels that the library takes from a hub's cache


def sees_images(checkpoint: Path) -> bool:
    """Return whether the checkpoint has a part that reads images, and the files that prepare them."""
    has_processor = any((checkpoint / name).is_file() for name in PROCESSORS)
    return has_processor and isinstance(read_json(checkpoint / "config.json").get("vision_config"), dict)


def read_sampling_defaults(folder: Path) -> dict[str, float]:
    """Return the fields that the folder sets, without those that make no sense; none for a folder without the file."""
    values = read_json(folder / "generation_config.json")
    greedy = {"temperature": 0} if values.get("do_sample") is False else {}
    found = {name: values.get(name) for name in SAMPLING_BOUNDS} | greedy
    return {
        name: int(value) if name == "top_k" else float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_within_bounds(name, value)
    }


def _is_within_bounds(name: str, value: float) -> bool:
    least, most = SAMPLING_BOUNDS[name]
    return least <= value <= most


def quantized_by(checkpoint: Path) -> str | None:
    """Return the method by which the checkpoint's weights are quantized; None if they are not."""
    found = read_json(checkpoint / "config.json")
    config = found.get("quantization_config") or found.get("quantization")
    if not isinstance(config, dict):
        return None
    return (quantization_method(config) or MLX).lower()


def missing_packages(checkpoint: Path) -> tuple[str, ...]:
    """Return the packages that are not installed and without which the checkpoint's quantized weights can't be
    loaded, by the names that pip takes."""
    return not_installed({**QUANTIZERS, **OF_A_HUB}.get(quantized_by(checkpoint) or "", ()))


def loaded_bytes(checkpoint: Path, quantize: Quantize = "none") -> int:
    """Return the bytes of the checkpoint's weights on a device, quantized as `quantize` says while they are loaded; 0
    for a checkpoint that is not there."""
    if checkpoint.suffix == GGUF:
        return int(_sum(checkpoint, _multiplied_out)) if checkpoint.is_file() else 0
    files = _without_copies(checkpoint.glob(WEIGHT_FILES))
    if quantize != "none":
        return int(sum(_sum(file, partial(_quantized, quantize)) for file in files))
    method = quantized_by(checkpoint)
    if method in FLOAT8 and not is_installed("kernels"):
        return int(sum(_sum(file, _without_float8) for file in files))
    is_packed = method != "mxfp4" or (is_installed("kernels") and is_installed("triton"))
    return int(sum(file.stat().st_size for file in files) * (1 if is_packed else 2 / MXFP4_BYTES))


def _sum(file: Path, bytes_of: Callable[[Tensor], float]) -> float:
    """Return the sum over a file's tensors; the size of a broken one."""
    try:
        return sum(map(bytes_of, read_header(file).tensors))
    except BrokenFile:
        return file.stat().st_size


def _multiplied_out(tensor: Tensor) -> int:
    return 2 * tensor.weights


def _without_float8(tensor: Tensor) -> int:
    return _multiplied_out(tensor) if tensor.dtype.startswith("F8") else tensor.bytes


def _quantized(quantize: Quantize, tensor: Tensor) -> float:
    """Return the bytes of a tensor: embeddings, norms and the output layer stay as they are."""
    if len(tensor.shape) != 2 or KEPT.search(tensor.name):
        return tensor.bytes
    return quantized_bytes(tensor, quantize, tensor.bytes / max(1, tensor.weights))


def _without_copies(files: Iterable[Path]) -> list[Path]:
    listed = list(files)
    usual = [file for file in listed if not file.name.startswith(ORIGINAL)]
    return usual or listed
