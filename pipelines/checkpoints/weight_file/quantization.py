"""How the weights of one safetensors file are quantized, by its header: which tensors are scales of which weights,
which ones only other programs' kernels need, and which nothing here can read.

ComfyUI's files say it layer by layer, in JSON: a tensor `comfy_quant` of bytes, or `_quantization_metadata`.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipelines.checkpoints.weight_file.header import Header, Tensor, read_data
from pipelines.checkpoints.weight_file.layout import BESIDE, DENOISER_PREFIX

Layers = Mapping[str, Mapping[str, Any]]  # what a file says of the quantization of its layers, by their names
SCALES: Final = ("scale_weight", "weight_scale", "weight_scale_inv")  # weights are multiplied by all, "inv" too
FOR_KERNELS: Final = frozenset({"scale_input", "input_scale", "output_scale", "comfy_quant", "scaled_fp8"})
READ: Final = re.compile(r"float8_(e4m3fn|e5m2)(_rowwise|_blockwise)?|int8_(tensorwise|blockwise)")
PLAIN_KEYS: Final = re.compile(r"format|full_precision_matrix_mult|group_size|block_size|per_\w+|orig\w*|\w*version")
COMPANION: Final = re.compile(r"scale|zero|quant|absmax|lut$|codebook|smooth_factor")  # in the name beside a weight
OF_FLOATS: Final = re.compile(r"weight|quant|absmax|zero_?point|lut$|codebook|put_scale|scale_input")  # of floats too
BUFFERS: Final = re.compile(r"(^|[._])(position_ids|\w+_index|\w+_ids|\w*mask)$")  # whole numbers that are no weights
INTEGERS: Final = frozenset({"I8", "U8", "I16", "U16", "I32", "U32"})
NO_FLOATS: Final = ("F4", "F6", "F8_E8M0")  # types in which several values share what each lacks
FLOATS: Final = frozenset({"F16", "BF16", "F32", "F64"})
MULTIPLIED: Final = FLOATS | {"F8_E4M3", "F8_E5M2", "I8"}
BY_NAMES: Final = (
    (re.compile(r"\.quant_state\.bitsandbytes__\w+$"), "bitsandbytes' 4 bits"),
    (re.compile(r"\.(wscales|smooth_factor)$"), "svdquant"),
    (re.compile(r"\.weight_scale_2$"), "nvfp4"),
    (re.compile(r"\.(qweight|weight_packed)$"), "a format with packed weights"),
)
GGUF_READ: Final = re.compile(r"F32|F16|BF16|Q4_[01]|Q5_[01]|Q8_0|Q[2-6]_K|IQ4_(NL|XS)")  # the library multiplies out
USUAL_BLOCK: Final = 128
REMEDY: Final = "use the bf16 or fp8 file"
GGUF_REMEDY: Final = "use a file of Q8_0, or of K types such as Q4_K_M"


@dataclass(frozen=True, slots=True)
class Scale:
    """A tensor by which a weight is multiplied, and along each side how many weights share a value of it."""

    name: str
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Quantization:
    """The quantization by the header. With a `problem` the file can't be loaded."""

    scales: Mapping[str, Scale]  # by the weight
    dropped: frozenset[str]  # names of tensors that are no weights: scales, and what kernels need
    problem: str | None = None


def read_quantization(file: Path, header: Header) -> Quantization:
    """Return the quantization of a single file, or of the part of it that a header has. The library dequantizes GGUF
    files by itself, so for them only an unsupported type is returned, as the `problem`. Raises BrokenFile."""
    if file.suffix == ".gguf":
        unread = next((each for each in header.tensors if not GGUF_READ.fullmatch(each.dtype)), None)
        why = f"{file}: {unread.name} is of {unread.dtype}, which is not supported: {GGUF_REMEDY}" if unread else None
        return Quantization({}, frozenset(), why)
    layers = _read_layer_configs(file, header)
    if unread_format := next(_unread_formats(header, layers), None):
        return Quantization({}, frozenset(_companions(header.tensors)), f"{file}: {unread_format}")
    return _by_names(file, header.tensors, layers)


def blocks_of(shape: Sequence[int], scale: Sequence[int], block: int | None = None) -> tuple[int, ...] | None:
    """Return, along each side of a weight, how many values share one of a scale's; None for a scale that does not fit
    it. `block` is the file's own value; without it 128 is tried, then equal parts."""
    if math.prod(scale) == 1:
        return tuple(shape)
    if math.prod(scale) == scale[0] == shape[0]:
        return (1, *shape[1:])
    if len(scale) != len(shape):
        return None
    sides = [_block(size, count, block) for size, count in zip(shape, scale, strict=True)]
    return tuple(side for side in sides if side is not None) if None not in sides else None


def _block(size: int, count: int, configured: int | None) -> int | None:
    if count in {1, size}:
        return size // count
    fitting = (each for each in (configured, USUAL_BLOCK) if each and -(-size // each) == count)
    return next(fitting, size // count if count and size % count == 0 else None)


def _by_names(file: Path, tensors: Sequence[Tensor], layers: Layers) -> Quantization:
    """Match every scale with its weight; anything that is left over is a problem."""
    by_name = {tensor.name: tensor for tensor in tensors}
    companions = _companions(tensors)
    scales: dict[str, Scale] = {}
    problem = None
    for name, owner in companions.items():
        suffix = name.rpartition(".")[2]
        if suffix in FOR_KERNELS:
            continue
        weight, scale = by_name[f"{owner}.weight"], by_name[name]
        config = layers.get(owner) or layers.get(owner.removeprefix(DENOISER_PREFIX)) or {}
        group = config.get("group_size")
        blocks = blocks_of(weight.shape, scale.shape, group if isinstance(group, int) else None)
        known = suffix in SCALES and weight.dtype in MULTIPLIED and scale.dtype in FLOATS
        if not known or blocks is None or weight.name in scales:
            shape = " x ".join(map(str, scale.shape)) or "1"
            problem = problem or f"{name} ({scale.dtype}, {shape}) is for {weight.name}, and nothing here reads it"
            continue
        scales[weight.name] = Scale(name, blocks)
    whole_numbers = (each for each in tensors if each.name not in companions and each.name not in scales)
    if problem is None and (bare := next(filter(is_packed, whole_numbers), None)) is not None:
        problem = f"{bare.name} is of {bare.dtype}, without a scale that is known here"
    return Quantization(scales, frozenset(companions), f"{file}: {problem}: {REMEDY}" if problem else None)


def _companions(tensors: Sequence[Tensor]) -> dict[str, str]:
    """Return the tensors that belong to the quantization of a weight, or of the file, with the layer of each."""
    by_name = {tensor.name: tensor for tensor in tensors}
    found = {}
    for name in by_name:
        owner, _, suffix = name.rpartition(".")
        layer = owner.partition(".weight.")[0].removesuffix(".weight")  # bitsandbytes has X.weight.quant_state.Y
        suffix = name[len(layer) + 1 :] if layer else name
        weight = by_name.get(f"{layer}.weight")
        if suffix.rpartition(".")[2] in FOR_KERNELS & {"scaled_fp8", "comfy_quant"}:
            found[name] = layer
        elif weight is None or suffix in {"weight", "bias"} or not COMPANION.search(suffix):
            continue
        elif weight.dtype not in FLOATS or OF_FLOATS.search(suffix):
            found[name] = layer
    return found


def is_packed(tensor: Tensor) -> bool:
    """Return whether its values can't be weights as they are."""
    is_matrix = len(tensor.shape) > 1 or tensor.name.endswith("weight")
    integers = tensor.dtype in INTEGERS and not BUFFERS.search(tensor.name)
    return is_matrix and (integers or tensor.dtype.startswith(NO_FLOATS))


def _read_layer_configs(file: Path, header: Header) -> Layers:
    """Return the quantization that the file names for its layers, by their names. Metadata that is no JSON is left out:
    the names of tensors show the rest."""
    layers: dict[str, Mapping[str, Any]] = {}
    config = _json(header.metadata.get("_quantization_metadata")).get("layers")
    if isinstance(config, dict):
        names = [tensor.name for tensor in header.tensors]
        loaded = (
            name for name in config if not name.startswith(BESIDE) or any(n.startswith(f"{name}.") for n in names)
        )
        layers |= {name: config[name] for name in loaded if isinstance(config[name], dict)}
    for tensor in header.tensors:
        layer, _, suffix = tensor.name.rpartition(".")
        if suffix == "comfy_quant":
            layers[layer] = _json(read_data(file, tensor))
    return layers


def _unread_formats(header: Header, layers: Layers) -> Iterator[str]:
    """Yield the formats, named by the file or known by its tensors, that are not multiplied out here."""
    for layer, layer_config in layers.items():
        name = str(layer_config.get("format", "quantization without a name"))
        if not READ.fullmatch(name):
            count = sum(each.get("format") == layer_config.get("format") for each in layers.values())
            yield f"{name} is not supported ({count} layers, such as {layer}): {REMEDY}"
        if flags := [key for key, value in layer_config.items() if value and not PLAIN_KEYS.fullmatch(key)]:
            yield f"{name} with {flags[0]} is not supported (such as {layer}): {REMEDY}"
    config = _json(header.metadata.get("quantization_config"))
    if method := config.get("method") or config.get("quant_method"):
        yield f"{method} is not supported: {REMEDY}"
    names = [tensor.name for tensor in header.tensors]
    for pattern, name in BY_NAMES:
        if found := next(filter(pattern.search, names), None):
            yield f"{name} is not supported (such as {found}): {REMEDY}"


def _json(text: Any) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
