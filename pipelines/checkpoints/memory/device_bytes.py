"""The bytes that a checkpoint's weights take on a device, by the headers of their files."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipelines.checkpoints.classes.index import denoiser_name, is_text_encoder
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.folder.folder import read_json
from pipelines.checkpoints.folder.own_parts import control_problem, own_files
from pipelines.checkpoints.memory.host_bytes import host_bytes
from pipelines.checkpoints.weight_file.header import Tensor
from pipelines.checkpoints.weight_file.layout import denoiser_tensors
from pipelines.protocol.images import CheckpointSpec, Control, Offload, Quantize, Runtime

VISION: Final = ("vision_model.", "visual_projection.")  # of an image encoder beside one of texts
# Embedders, norms with their modulation, and the last layer: few multiplications, and the whole image depends on them
SENSITIVE: Final = re.compile(
    r"embed|norm|time|modulation|_mod\.|adaln|guidance|proj(ector|ection)|^\w+_in$|^proj_out$"
    r"|attentions\.\d+\.proj_(in|out)$|^final_layer|^conv_"
)
ITEM_BYTES: Final[dict[Quantize, float]] = {"int8": 1.0, "int4": 0.6, "nf4": 0.6}  # with their share of the scales


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes that a checkpoint's weights take at the peak: of the device, and of the host for those that wait
    there."""

    device_bytes: int
    host_bytes: int = 0


def estimate_bytes(spec: CheckpointSpec, item_bytes: int) -> int:
    """Estimate the bytes of the weights on the device, as `estimate_footprint` does."""
    return estimate_footprint(spec, item_bytes).device_bytes


def estimate_footprint(spec: CheckpointSpec, item_bytes: int) -> Footprint:
    """Estimate the bytes of the weights at `item_bytes` a weight, from the headers of their files.

    Raises CheckpointError for files that can't be loaded.
    """
    files = CheckpointFiles.of(spec)
    quantize = "float8" if stays_float8(files, spec.runtime) else spec.runtime.quantize
    sizes = component_bytes(files, item_bytes, quantize)
    if spec.runtime.parallel == "tensor":
        denoiser = denoiser_name(files.index)
        sizes[denoiser] = [size / spec.runtime.gpus for size in sizes[denoiser]]
    on_device = fullest_device_bytes(sizes, spec.runtime) + control_bytes(spec.controls, item_bytes)
    return Footprint(on_device, host_bytes(sizes, spec.runtime))


def stays_float8(files: CheckpointFiles, runtime: Runtime) -> bool:
    """Return whether the weights of a single file stay float8 on the device, as they are stored, since [runtime] has no
    other `quantize`. Those with scales beside them are multiplied out as they are read."""
    return runtime.quantize == "none" and files.is_float8


def control_bytes(controls: Iterable[Control], item_bytes: int) -> int:
    """Return the bytes of the controls' networks and their image encoders on the device at `item_bytes` a weight.
    Raises CheckpointError for files that can't be loaded."""
    networks = [control for control in controls if control.kind != "map"]
    for control in networks:
        if (problem := control_problem(control, read_json(control.path / "config.json"))) is not None:
            raise CheckpointError(problem)
    paths = {path: None for control in networks for path in (control.path, control.image_encoder) if path is not None}
    return sum(map(_network_weights, paths)) * item_bytes


def _network_weights(path: Path) -> int:
    files = own_files(path)
    if not files or not files[0].path.is_file():
        raise CheckpointError(f"{path}: there is no such file, or no .safetensors file in it")
    tensors = [tensor for file in files for tensor in file.tensors]
    seeing = [tensor for tensor in tensors if tensor.name.startswith(VISION)]
    return sum(tensor.weights for tensor in seeing or tensors)  # of a whole CLIP, the image encoder alone


def component_bytes(files: CheckpointFiles, item_bytes: int, quantize: Quantize) -> dict[str, list[float]]:
    """Return the bytes of each component's tensors at `item_bytes` a weight, with the denoiser quantized. A GGUF file's
    tensors stay as they are in the file. Raises CheckpointError for files that can't be loaded."""
    denoiser = denoiser_name(files.index)
    sizes: dict[str, list[float]] = {}
    for part, of_part in files.weights.items():
        of_quantized: Quantize = quantize if part == denoiser else "none"
        alone = part == denoiser and files.is_base  # other components in the file are not loaded
        for file in of_part:
            tensors = denoiser_tensors(file.tensors) if alone else file.tensors
            is_packed = file.path.suffix == ".gguf"
            sizes.setdefault(part, []).extend(
                each.bytes if is_packed else quantized_bytes(each, of_quantized, item_bytes) for each in tensors
            )
    return sizes


def quantized_bytes(tensor: Tensor, quantize: Quantize, item_bytes: float) -> float:
    """Return a tensor's bytes on the device; `item_bytes` is a weight's that is not quantized.

    "fp8" and "float8" leave out sensitive layers. These may be a quarter of the weights: large denoisers take 1.28 to
    1.33 bytes a weight in fp8, and 1.03 where all blocks share their modulation.
    """
    if quantize in {"fp8", "float8"}:
        sides = len(tensor.shape)
        computed = sides == 2 or (sides > 2 and quantize == "float8")  # fp8 has no convolutions
        plain = not computed or SENSITIVE.search(tensor.name.removesuffix(".weight"))
        return tensor.weights * (item_bytes if plain else 1.0)
    return tensor.weights * ITEM_BYTES.get(quantize, item_bytes)


def fullest_device_bytes(parts: Mapping[str, Sequence[float]], runtime: Runtime) -> int:
    """Return the peak in bytes that a checkpoint takes on a device; with the text encoders on a device of their own, on
    the one of the two that holds more."""
    if runtime.gpus == 1 or runtime.parallel != "encoders":
        return device_bytes(parts, runtime.offload)
    return max(device_bytes(side, runtime.offload) for side in _encoders_and_others(parts))


def device_bytes(parts: Mapping[str, Sequence[float]], offload: Offload) -> int:
    """Return the peak on the device in bytes, for components with tensors of these sizes."""
    total = sum(sum(tensors) for tensors in parts.values())
    match offload:
        case "none":
            return int(total)
        case "encoders":
            encoders, others = _encoders_and_others(parts)
            return device_bytes(encoders, "group") + device_bytes(others, "none")
        case "model":  # one component at a time
            return int(max((sum(tensors) for tensors in parts.values()), default=0))
        case "group":  # one layer runs while the next one is copied
            return int(min(total, 2 * max((size for tensors in parts.values() for size in tensors), default=0)))


def _encoders_and_others(parts: Mapping[str, Sequence[float]]) -> list[dict[str, Sequence[float]]]:
    return [{name: part for name, part in parts.items() if is_text_encoder(name) == side} for side in (True, False)]
