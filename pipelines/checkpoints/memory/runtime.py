"""`[runtime]` before anything is loaded: options that defeat each other, and `runtime = "auto"`. Pure, but that
`least_bytes` reads the headers of files."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.memory.device_bytes import component_bytes, control_bytes, device_bytes, estimate_bytes
from pipelines.protocol.images import CheckpointSpec, Dtype, Offload, Quantize, Runtime

DTYPE_BYTES: Final[dict[Dtype, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}
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
    budget_bytes: int,
    capability: tuple[int, int] | None,
    beside_bytes: int = 0,
    refused: Collection[str] = (),
) -> tuple[Runtime, str]:
    """Choose the settings that `runtime = "auto"` stands for, and say why. `sizes_of` returns the bytes of the
    components' tensors with the denoiser quantized so.

    `budget_bytes` are those that the device has for weights, `capability` its compute capability, None without a GPU.
    `beside_bytes` are those of controls: they stay on the device, and so does the denoiser that they are for. `refused`
    are the values of options that were tried and can't be had.
    The first choice that fits is the fastest one: text encoders are needed for new prompts alone, and other components
    for every image. Where nothing fits, it is the smallest, and loading refuses it.
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
    sizes = []
    for chosen, offload in options:
        size = device_bytes(sizes_of(chosen), offload) + beside_bytes
        sizes.append(f"{_name(chosen, offload)} {size / 2**30:.1f}")
        if size <= budget_bytes or (chosen, offload) == options[-1]:
            why = f"{budget_bytes / 2**30:.1f} GiB for weights; in GiB: {', '.join(sizes)}"
            return replace(plain, quantize=chosen, offload=offload), f"{_name(chosen, offload)} ({why})"
    raise AssertionError("the last option is always taken")


def least_bytes(spec: CheckpointSpec, item_bytes: int) -> int:
    """Estimate the least that a checkpoint takes on a device of a worker whose weights have `item_bytes` each: of
    `runtime = "auto"` on a GPU, the smallest of its choices; of what may be divided in several ways, the smallest part.
    Raises CheckpointError for files that can't be loaded."""
    runtime = spec.runtime
    item_bytes = item_bytes if runtime.dtype == "auto" else DTYPE_BYTES[runtime.dtype]
    if runtime.auto and item_bytes == DTYPE_BYTES["bfloat16"]:  # on a GPU
        sizes_of = partial(component_bytes, CheckpointFiles.of(spec), item_bytes)
        runtime, _ = choose_runtime(sizes_of, 0, (0, 0), control_bytes(spec.controls, item_bytes))
    ways = [runtime, replace(runtime, parallel="encoders")] if runtime.parallel == "auto" else [runtime]
    return min(estimate_bytes(replace(spec, runtime=each), item_bytes) for each in ways)


def _name(quantize: Quantize, offload: Offload) -> str:
    options = {"quantize": quantize, "offload": offload}
    return " and ".join(f"{key} = {value!r}" for key, value in options.items() if value != "none") or "plain"
