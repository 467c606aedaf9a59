"""`[runtime]` before anything is loaded: options that defeat each other, and `runtime = "auto"`. Pure, but that
`least_bytes` reads the headers of files."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.memory.device_bytes import component_bytes, control_bytes, device_bytes, estimate_bytes
from pipelines.checkpoints.memory.host_bytes import host_bytes
from pipelines.checkpoints.memory.shares import Room
from pipelines.protocol.images import CheckpointSpec, Dtype, Offload, Quantize, Runtime

DTYPE_BYTES: Final[dict[Dtype, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}
COPIED_BY_LAYER: Final = frozenset({"group", "encoders"})  # from the host, which can be page-locked or not
FP8_CAPABILITY: Final = (8, 9)  # Ada, Hopper and later multiply float8 matrices

Option = tuple[str, Callable[[Runtime], bool]]  # as messages name it, and whether it is set
COMPILE: Final[Option] = "compile", lambda r: r.compile
FP8: Final[Option] = "quantize = 'fp8'", lambda r: r.quantize == "fp8"
OFFLOAD: Final[Option] = "offload", lambda r: r.offload != "none"
BY_GROUP: Final[Option] = "offload = 'group'", lambda r: r.offload == "group"
LORA_FOLDER: Final[Option] = "lora_folder", lambda r: r.lora_folder is not None
SEVERAL: Final[Option] = "gpus", lambda r: r.gpus > 1
TOGETHER: Final[Option] = "gpus", lambda r: r.gpus > 1 and r.parallel in {"context", "tensor"}  # in one forward pass
# Two options, and why they defeat each other. Graph runs a step were counted on a transformer of 20 blocks: 20 with
# compile alone, 20 with a first-block cache, 55 with taylorseer, 300 with float8.
CONFLICTS: Final[tuple[tuple[Option, Option, str], ...]] = (
    (COMPILE, ("quantize = 'float8'", lambda r: r.quantize == "float8"),
     "it casts the weights before every layer, so that almost nothing is compiled; 'fp8' computes in float8"),
    (COMPILE, ("cache.method = 'taylorseer'", lambda r: r.cache is not None and r.cache.method == "taylorseer"),
     "it breaks every block into three graphs; 'first-block' does not"),
    (COMPILE, BY_GROUP, "layers are copied by hooks between them, so that almost nothing is compiled; 'model' moves "
     "whole components"),
    (COMPILE, LORA_FOLDER, "adapters that calls name change the layers, which are then compiled anew while all calls "
     "wait"),
    (FP8, ("loras or lora_folder", lambda r: bool(r.loras) or r.lora_folder is not None),
     "adapters are added to weights that are not quantized"),
    (FP8, BY_GROUP, "copying the weights for every step takes longer than computing in float8 saves; use 'float8' with "
     "it"),
    (("quantize = 'int8' or 'int4'", lambda r: r.quantize in {"int8", "int4"}), OFFLOAD,
     "torchao's weights can't be moved while images are drawn; 'float8' can"),
    (SEVERAL, OFFLOAD, "both say where the weights are"),
    (TOGETHER, COMPILE, "the exchanges between the devices are not compiled"),
    (TOGETHER, ("cache", lambda r: r.cache is not None),
     "each device would decide by its own part of the image which steps to skip"),
    (TOGETHER, LORA_FOLDER, "adapters that calls name would change the weights of one device alone"),
    (SEVERAL, ("quantize", lambda r: r.quantize not in {"none", "fp8"}),
     "such weights can't be sent to other devices; 'fp8' can"),
    (("parallel = 'tensor'", lambda r: r.parallel == "tensor"),
     ("quantize or loras", lambda r: r.quantize != "none" or bool(r.loras)), "the plans divide plain weights"),
)  # fmt: skip


def check_conflicts(runtime: Runtime) -> None:
    """Check that no two options defeat each other. Raises CheckpointError."""
    for (one, has_one), (other, has_other), reason in CONFLICTS:
        if has_one(runtime) and has_other(runtime):
            raise CheckpointError(f"runtime: {one} and {other} defeat each other: {reason}")


def choose_runtime(
    sizes_of: Callable[[Quantize], Mapping[str, Sequence[float]]],
    room: Room,
    capability: tuple[int, int] | None,
    beside_bytes: int = 0,
    refused: Collection[str] = (),
) -> tuple[Runtime, str]:
    """Choose the settings that `runtime = "auto"` stands for, and say why. `sizes_of` returns the bytes of the
    components' tensors with the denoiser quantized so.

    `room` is what device and host have for weights, `capability` the device's compute capability, None without a GPU.
    `beside_bytes` are those of controls: they stay on the device, and so does the denoiser that they are for. `refused`
    are the values of options that were tried and can't be had.
    The first choice that fits is the fastest one: text encoders are needed for new prompts alone, and other components
    for every image. Weights on the host are page-locked if it has room for that. Where nothing fits, it is the
    smallest, and loading refuses it.
    """
    plain = Runtime()
    if capability is None:
        return plain, "no GPU: the plain settings"
    quantize: Quantize = "fp8" if capability >= FP8_CAPABILITY and "fp8" not in refused else "float8"
    options: tuple[tuple[Quantize, Offload], ...] = (
        ("none", "none"), ("none", "encoders"), (quantize, "none"), (quantize, "encoders"), ("none", "model"),
        (quantize, "model"), ("float8", "group"),
    )  # fmt: skip
    options = options[:4] if beside_bytes else options
    options = tuple(each for each in options if not {*each} & {*refused}) or options[:1]
    tried, chosen = [], plain
    for chosen in _forms(options):
        parts = sizes_of(chosen.quantize)
        size, waiting = device_bytes(parts, chosen.offload) + beside_bytes, host_bytes(parts, chosen)
        if not chosen.page_lock and size > room.device_bytes:
            continue  # the host is not what it lacks
        on_host = f" and {waiting / 2**30:.1f} on the host" if waiting else ""
        tried.append(f"{name_of(chosen)} {size / 2**30:.1f}{on_host}")
        if room.holds(size, waiting):
            break
    return chosen, f"{name_of(chosen)} ({_has(room)} for weights; in GiB: {', '.join(tried)})"


def least_bytes(spec: CheckpointSpec, item_bytes: int) -> int:
    """Estimate the least that a checkpoint takes on a device of a worker whose weights have `item_bytes` each: of
    `runtime = "auto"` on a GPU, the smallest of its choices; of what may be divided in several ways, the smallest part.
    Raises CheckpointError for files that can't be loaded."""
    runtime = spec.runtime
    item_bytes = item_bytes if runtime.dtype == "auto" else DTYPE_BYTES[runtime.dtype]
    if runtime.auto and item_bytes == DTYPE_BYTES["bfloat16"]:  # on a GPU
        sizes_of = partial(component_bytes, CheckpointFiles.of(spec), item_bytes)
        runtime, _ = choose_runtime(sizes_of, Room(0), (0, 0), control_bytes(spec.controls, item_bytes))
    ways = [runtime, replace(runtime, parallel="encoders")] if runtime.parallel == "auto" else [runtime]
    return min(estimate_bytes(replace(spec, runtime=each), item_bytes) for each in ways)


def _forms(options: Iterable[tuple[Quantize, Offload]]) -> Iterator[Runtime]:
    for quantize, offload in options:
        yield Runtime(quantize=quantize, offload=offload)
        if offload in COPIED_BY_LAYER:
            yield Runtime(quantize=quantize, offload=offload, page_lock=False)


def _has(room: Room) -> str:
    device = f"{room.device_bytes / 2**30:.1f} GiB"
    return device if room.host_bytes == math.inf else f"{device} and {room.host_bytes / 2**30:.1f} GiB of the host"


def name_of(runtime: Runtime) -> str:
    """Return how weights are kept, in the words of a catalog file."""
    options = {"quantize": runtime.quantize, "offload": runtime.offload}
    words = " and ".join(f"{key} = {value!r}" for key, value in options.items() if value != "none") or "plain"
    return words if runtime.page_lock else f"{words} without page-locked copies"
